/** Requests of the page Explain, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface ExplainedWord {
  word: string;
  attribution: number;
  /** The name of the text that it is in. */
  text: string;
  start: number;
  end: number;
}

export interface ExplainAnswer extends Noted {
  by: "gradients" | "occlusion";
  prediction: string;
  /** What the attributions are shares of. */
  target: string;
  probability: number | null;
  score: number;
  baseline: string;
  baseline_score: number;
  sum: number;
  completeness_error: number;
  texts: Record<string, string>;
  words: ExplainedWord[];
  curves?: {
    shares: number[];
    deletion: number[];
    insertion: number[];
    random_deletion: number[];
    random_insertion: number[];
  } | null;
}
