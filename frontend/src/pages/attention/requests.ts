/** Requests of the page Attention, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface AttentionAnswer extends Noted {
  kind: "encoder" | "decoder" | "cross";
  /** Their numbers, from 1. */
  layers: number[];
  heads: number[];
  queries: string[];
  keys: string[];
  /** By layer and head. */
  first_token_share: number[][];
  separator_share?: number[][];
  uniform_share: { first_token: number; separator: number };
  from?: string;
  to?: string;
  between?: number[][];
  /** Bytes in base64: a picture of each head, of rows x columns. */
  thumbnails: string;
  rows: number;
  columns: number;
}

/** One head: its weights as shares of the largest, in 8 bits. */
export interface HeadAnswer {
  rows: number;
  columns: number;
  largest: number;
  weights: string;
}
