/** Requests of the page Bias, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface Occupation {
  occupation: string;
  /** Positive for the first pronoun. */
  score: number;
  low: number | null;
  high: number | null;
  /** Templates, or pairs of words, in which the score is positive. */
  positive: number;
  log_odds: number | null;
}

export interface PronounScores {
  method: "masked" | "causal" | "vectors";
  pronouns: [first: string, second: string];
  /** Templates, or pairs of words, that intervals resample. */
  samples: number;
  /** Mean log-odds without an occupation, which are subtracted. */
  prior: number | null;
  /** Those that lean to the first pronoun come first. */
  occupations: Occupation[];
}

/** A word embedding association test (WEAT): the words x and y against those of the pronouns, a and b. */
export interface AssociationTest {
  name: string;
  x: string[];
  y: string[];
  a: string[];
  b: string[];
  effect: number;
  p: number;
  partitions: number;
  exact: boolean;
}

/** How much more the first pronoun than the second attends to the first of two occupations, by layer and head. */
export interface PronounAttention {
  pairs: [first: string, second: string][];
  templates: number;
  sentences: number;
  layers: number[];
  heads: number[];
  contrast: number[][];
  low: number[][] | null;
  high: number[][] | null;
  above: number;
  below: number;
}

export interface BiasAnswer extends Noted {
  model: string;
  language: "en" | "zh";
  pronouns: [first: string, second: string];
  scores: PronounScores[];
  tests: AssociationTest[];
  attention: PronounAttention | null;
}
