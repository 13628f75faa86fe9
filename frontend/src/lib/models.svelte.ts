/** The models in the folders of the studio, and what each can do. */

import { get } from "./api";
import { count, translations } from "./i18n.svelte";
import { errorFor } from "./sentences";

export type Capability =
  | "fill" | "next_sentence" | "generate" | "ask" | "predict" | "translate" | "nearest" | "bias" | "clusters"
  | "similarity" | "senses" | "attention" | "layers" | "probes" | "retrieval" | "trace" | "explain"; // prettier-ignore

export interface Model {
  id: string;
  name: string;
  bundled: boolean;
  can: Capability[];
  /** Why it cannot be read; then it has no facts. */
  error: string;
  facts: Facts | null;
}

export interface Facts {
  system: string;
  task: string | null;
  /** Whether its task takes pairs of texts. */
  pair: boolean;
  labels: string[];
  parameters: number;
  vocabulary: number;
  language: "en" | "zh";
  layers: number;
  heads: number;
  card: { text?: string; parent?: string; hardware?: string };
  scores: Record<string, string>;
}

type Listed = Omit<Model, "facts"> & Facts;

const text = translations({
  parameters: [(n: string) => `${n} parameters`, (n: string) => `${n} 参数`],
  layers: [(n: number) => `${n} ${n === 1 ? "layer" : "layers"}`, (n: number) => `${n} 层`],
  vocabulary: [(n: string) => `vocabulary ${n}`, (n: string) => `词表 ${n}`],
});

class Models {
  all = $state.raw<readonly Model[] | null>(null);
  error = $state("");
  #asked = false;

  /** Read the list, once unless it is asked for again. */
  async load(again = false): Promise<void> {
    if (this.#asked && !again) return;
    this.#asked = true;
    try {
      const { models } = await get<{ models: Listed[] }>("models");
      this.all = models.map((each) => ({ ...each, facts: each.error ? null : each }));
      this.error = "";
    } catch (error) {
      this.error = errorFor(error);
      this.#asked = false;
    }
  }

  find(id: string): Model | undefined {
    return this.all?.find((each) => each.id === id);
  }
}

export const models = new Models();

/** A number of parameters as 24.8M. */
export function size(parameters: number): string {
  for (const [unit, name] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]] as const) {
    if (parameters >= unit) return `${(parameters / unit).toFixed(parameters >= 100 * unit ? 0 : 1)}${name}`;
  }
  return String(parameters);
}

/** The facts of a model in one line. */
export function summary(model: Model): string {
  const facts = model.facts;
  if (!facts) return model.error;
  const parts = [facts.system, facts.task ?? "", text.parameters(size(facts.parameters)), facts.layers ? text.layers(facts.layers) : ""];
  return [...parts, text.vocabulary(count(facts.vocabulary))].filter(Boolean).join(" · ");
}
