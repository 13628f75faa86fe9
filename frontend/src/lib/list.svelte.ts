/** A listing of the server, such as that of all runs: read when a page is opened, in another language, and on demand. */

import { get } from "./api";
import { ui } from "./i18n.svelte";
import { errorFor } from "./sentences";

export class List<T> {
  all = $state.raw<readonly T[] | null>(null);
  error = $state("");
  #path: string;

  /** `path` is that of the request and the name of the list in its answer. Call it while a component is set up. */
  constructor(path: string) {
    this.#path = path;
    $effect(() => {
      void ui.language;
      void this.load();
    });
  }

  async load(): Promise<void> {
    try {
      this.all = (await get<Record<string, T[]>>(this.#path))[this.#path] ?? [];
      this.error = "";
    } catch (error) {
      this.error = errorFor(error);
    }
  }
}
