/** A view: inputs that the URL holds, the request made of them, and its answer. */

import { untrack } from "svelte";
import { ui } from "./i18n.svelte";
import { router } from "./router.svelte";
import { errorFor, noteFor, type Labels } from "./sentences";

type Value = string | number | boolean | readonly string[];
type Ask<V, A> = (values: V, signal: AbortSignal) => Promise<A> | null;

/**
 * `values` are bound to inputs. `submit()` writes them to the URL and asks; going back or opening an address restores
 * them and asks again, as does another language of the interface. `ask` returns null while an input is missing. A newer
 * question cancels the one before. `labels` are those of the inputs, which errors and notes of the server name.
 */
export class View<V extends object, A> {
  values: V;
  /** The last answer, and the values it belongs to. */
  answer = $state.raw<A | null>(null);
  asked = $state.raw<V>();
  running = $state(false);
  #failure = $state.raw<unknown>(null);
  #labels: Labels = {};
  readonly error: string = $derived(this.#failure === null ? "" : errorFor(this.#failure, this.#labels));
  readonly notes: readonly string[] = $derived(notesOf(this.answer).map((note) => noteFor(note, this.#labels)));
  #defaults: V;
  #ask: Ask<V, A>;
  #abort: AbortController | null = null;

  /** Call it while a component is set up: the view ends with the component. */
  constructor(defaults: V, ask: Ask<V, A>, labels: Labels = {}) {
    this.#defaults = defaults;
    this.#ask = ask;
    this.#labels = labels;
    this.values = $state(structuredClone(defaults));
    const path = router.path;
    $effect(() => {
      const search = router.search;
      if (router.path === path) untrack(() => this.#restore(search));
    });
    let language = ui.language;
    $effect(() => {
      if (ui.language === language) return;
      language = ui.language;
      untrack(() => void this.#run());
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
      this.#failure = null;
      return;
    }
    try {
      const answer = await question;
      if (abort.signal.aborted) return;
      this.answer = answer;
      this.asked = values;
      this.#failure = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.answer = null;
      this.#failure = error;
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
