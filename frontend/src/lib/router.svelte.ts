/** Routing with the History API: the path is the page and its view, the query is the state of the view. */

import { tick } from "svelte";

/** Paths that the server answers itself. */
const SERVED = ["/api/", "/reports/", "/assets/"];

class Router {
  #url = $state.raw(new URL(location.href));
  /** The last query of each path: a view that was left is found again as it was. */
  #queries = $state<Record<string, string>>({});
  readonly path = $derived(this.#url.pathname);
  readonly search = $derived(this.#url.search);
  /** The parts of the path: page, then view. */
  readonly parts = $derived(this.#url.pathname.split("/").filter(Boolean));

  constructor() {
    addEventListener("popstate", () => this.#show(new URL(location.href)));
    document.addEventListener("click", (event) => this.#follow(event));
  }

  /** Show a path with its query; `replace` leaves no entry in the history. */
  go(target: string, replace = false): void {
    const url = new URL(target, location.href);
    if (url.href === location.href) return;
    const moved = url.pathname !== location.pathname;
    history[replace ? "replaceState" : "pushState"](null, "", url);
    this.#show(url);
    if (moved) void this.#focus();
  }

  /** The address of a view as it was left, for links. */
  href(path: string): string {
    return path + (this.#queries[path] ?? "");
  }

  #show(url: URL): void {
    this.#url = url;
    this.#queries[url.pathname] = url.search;
  }

  async #focus(): Promise<void> {
    scrollTo(0, 0);
    await tick();
    if (!document.activeElement?.closest("nav")) document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
  }

  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin || link.hash) return;
    if (SERVED.some((each) => link.pathname.startsWith(each))) return;
    event.preventDefault();
    this.go(link.href);
  }
}

export const router = new Router();
