/** Requests of the page Trace, with the types of their answers. */

import type { Noted } from "$lib/api";

/** A tensor of a network, whatever the text and the layer. */
export interface TensorKind {
  name: string;
  meaning: string;
  formula: string;
  /** The part of the network. */
  part: string;
  /** The symbolic shape. */
  axes: string[];
}

/** Matrices of bytes; `values` in pixels.ts says what a byte stands for. */
export interface Picture {
  panels: number;
  rows: number;
  columns: number;
  signed: boolean;
  limit: number;
  /** The largest difference of a stored value to the exact one. */
  error: number;
  data: string;
}

export interface Tensor {
  /** Index of its kind. */
  kind: number;
  /** From 1; 0 for what belongs to no layer. */
  layer: number;
  shape: number[];
  min: number;
  max: number;
  mean: number;
  std: number;
  masked?: number;
  /** Indices of the tensors that it is computed from. */
  sources: number[];
  values?: unknown;
  picture?: Picture;
}

export interface Step {
  title: string;
  network: string;
  read: string[];
  /** Names along an axis, of each sequence of the batch. */
  labels: Record<string, string[][]>;
  predictions: Record<string, { token: string; probability: number }[]>;
  chosen: string;
  cached: number;
  cache_bytes: number;
  /** Its tensors: the first one and how many. */
  first: number;
  count: number;
}

export interface TraceAnswer extends Noted {
  model: string;
  system: string;
  summary: string;
  text: string;
  explanations: string[];
  /** The axes of all kinds in the language of the interface. */
  axis_names: Record<string, string>;
  kinds: TensorKind[];
  steps: Step[];
  tensors: Tensor[];
}
