/** A listing of the server, such as that of all runs: read when a page is opened, and again when it asks. */

import { get } from "./api";

export class List<T> {
  all = $state.raw<readonly T[] | null>(null);
  error = $state("");
  #path: string;

  /** `path` is that of the request and the name of the list in its answer. */
  constructor(path: string) {
    this.#path = path;
    void this.load();
  }

  async load(): Promise<void> {
    try {
      this.all = (await get<Record<string, T[]>>(this.#path))[this.#path] ?? [];
      this.error = "";
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    }
  }
}
