/** Requests of the page Words, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface Neighbor {
  word: string;
  similarity: number;
}

export interface NearestAnswer {
  neighbors: Neighbor[];
}

export type Point = [x: number, y: number];

export interface AnalogyAnswer extends NearestAnswer {
  expression: string;
  positive: string[];
  negative: string[];
  /** The words of the expression and the first answer, in a plane. */
  words: { word: string; point: Point }[];
  /** The exact sum of the vectors. */
  target: Point;
  explained_variance: number;
}

export interface SimilarityAnswer {
  similarity: number;
}

export interface WordUse {
  text: string;
  /** Characters, not UTF-16 units. */
  start: number;
  end: number;
  /** Name of its cluster: A, B, C. */
  group: string;
}

export interface SensesAnswer extends Noted {
  word: string;
  model: string;
  uses: WordUse[];
  cosines: number[][];
  note?: string;
}
