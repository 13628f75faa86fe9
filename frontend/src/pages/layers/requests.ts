/** Requests of the page Layers, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface TaskMix {
  model: string;
  task: string;
  /** Softmax weights of the layers, which sum to 1. */
  weights: number[];
  gamma: number;
  /** Numbers of the layers: 0 for the embeddings. */
  layers: number[];
}

export interface LayersAnswer {
  tasks: TaskMix[];
}

/** A share with its 95% interval. */
export interface Score {
  value: number;
  low: number | null;
  high: number | null;
}

/** A linear probe on each layer, for one task. */
export interface ProbeCurve {
  task: string;
  classes: number;
  /** Examples for training and for the test. */
  train: number;
  test: number;
  majority: number;
  layers: number[];
  scores: Score[];
  control: Score[] | null;
  selectivity: Score[] | null;
  random: Score[] | null;
  /** The layer of the highest accuracy. */
  best: number;
}

export interface ProbesAnswer extends Noted {
  model: string;
  tasks: ProbeCurve[];
}

/** How often the nearest sentence of the other language is the translation. */
export interface RetrievalAnswer extends Noted {
  /** Languages, or "first" and "second". */
  first: string;
  second: string;
  count: number;
  layers: { layer: number; forward: Score; backward: Score }[];
}
