/** Requests of the page Try, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface Candidate {
  word: string;
  probability: number;
}

export interface FillAnswer {
  text: string;
  /** The candidates of each mask. */
  masks: Candidate[][];
}

/** A token that was considered in decoding. */
export interface Hypothesis {
  token: string;
  step: number;
  /** Index of the one it extends; -1 for the prompt. */
  parent: number;
  probability: number;
  log_probability: number;
  score: number;
  outcome: "kept" | "ended" | "dropped";
  reason: string;
}

export interface DecodedText {
  source: string[] | null;
  prompt: string[];
  /** Indices of the hypotheses of the best answer. */
  path: number[];
  hypotheses: Hypothesis[];
}

export interface DecodingTrace {
  strategy: "beam search" | "sampling" | "greedy";
  texts: DecodedText[];
}

export interface Continuation {
  text: string;
  score: number | null;
  log_probability: number | null;
}

export interface GenerateAnswer extends Noted {
  text: string;
  best: Continuation[];
  trace: DecodingTrace;
}

export interface Span {
  answer: string;
  probability: number;
  start: number;
  end: number;
}

export interface SpanAnswer extends Noted, Span {
  null_odds: number;
  best: Span[];
}

/** The answer of a language model. */
export interface GeneratedAnswer extends Noted {
  generated: string;
  prompt: string;
}

export type AskAnswer = SpanAnswer | GeneratedAnswer;

export interface Entity {
  start: number;
  end: number;
  label: string;
  text: string;
}

export type Prediction =
  | { label: string; probability: number }
  | { labels: { label: string; probability: number }[] }
  | { number: number }
  | { words: string[]; tags: string[]; probabilities: number[]; entities: Entity[]; segmented?: string[] };

export interface PredictAnswer extends Noted {
  task: string;
  prediction: Prediction;
  /** Of all labels, for tasks that have probabilities of labels. */
  probabilities: Record<string, number>;
}

export interface Translation {
  generated: string;
  score?: number;
  log_probability?: number;
}

export interface Alignment {
  source: string[];
  target: string[];
  /** Attention of each target word to each source word. */
  weights: number[][];
}

export interface TranslateAnswer extends Noted, Translation {
  best: Translation[];
  alignment: Alignment | null;
}

export interface NextSentenceAnswer {
  is_next: number;
}
