/** A view: inputs that the URL holds, the request made of them, and its answer. */

import { untrack } from "svelte";
import { router } from "./router.svelte";

type Value = string | number | boolean | readonly string[];
type Ask<V, A> = (values: V, signal: AbortSignal) => Promise<A> | null;

/**
 * `values` are bound to inputs. `submit()` writes them to the URL and asks; going back or opening an address restores
 * them and asks again. `ask` returns null while an input is missing. A newer question cancels the one before.
 */
export class View<V extends object, A> {
  values: V;
  /** The last answer, and the values it belongs to. */
  answer = $state.raw<A | null>(null);
  asked = $state.raw<V>();
  error = $state("");
  running = $state(false);
  readonly notes: readonly string[] = $derived(notesOf(this.answer));
  #defaults: V;
  #ask: Ask<V, A>;
  #abort: AbortController | null = null;

  /** Call it while a component is set up: the view ends with the component. */
  constructor(defaults: V, ask: Ask<V, A>) {
    this.#defaults = defaults;
    this.#ask = ask;
    this.values = $state(structuredClone(defaults));
    const path = router.path;
    $effect(() => {
      const search = router.search;
      if (router.path === path) untrack(() => this.#restore(search));
    });
    $effect(() => () => this.#abort?.abort());
  }

  submit(): void {
    const query = this.#query();
    if (query === router.search) void this.#run();
    else router.go(router.path + query);
  }

  #query(): string {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries($state.snapshot(this.values) as Record<string, Value>)) {
      const fallback = this.#defaults[name as keyof V];
      if (Array.isArray(value)) value.forEach((each: string) => query.append(name, each));
      else if (value !== fallback) query.set(name, String(value));
    }
    return query.size ? `?${query}` : "";
  }

  #restore(search: string): void {
    const query = new URLSearchParams(search);
    const found = structuredClone(this.#defaults) as Record<string, Value>;
    for (const [name, fallback] of Object.entries(this.#defaults as Record<string, Value>)) {
      if (query.has(name)) found[name] = parsed(query.getAll(name), fallback);
    }
    Object.assign(this.values, found);
    void this.#run();
  }

  async #run(): Promise<void> {
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    const values = $state.snapshot(this.values) as V;
    const question = this.#ask(values, abort.signal);
    this.running = question !== null;
    if (!question) {
      this.answer = null;
      this.error = "";
      return;
    }
    try {
      const answer = await question;
      if (abort.signal.aborted) return;
      this.answer = answer;
      this.asked = values;
      this.error = "";
    } catch (error) {
      if (abort.signal.aborted) return;
      this.answer = null;
      this.error = error instanceof Error ? error.message : String(error);
    }
    this.running = false;
  }
}

function parsed(given: string[], fallback: Value): Value {
  const last = given.at(-1) ?? "";
  if (Array.isArray(fallback)) return given;
  if (typeof fallback === "boolean") return last === "true";
  if (typeof fallback === "number") return last.trim() !== "" && Number.isFinite(Number(last)) ? Number(last) : fallback;
  return last;
}

function notesOf(answer: unknown): string[] {
  const found = typeof answer === "object" && answer !== null && "notes" in answer ? answer.notes : [];
  return Array.isArray(found) ? found.map(String) : [];
}
