/** Requests of the page Try, with the types of their answers. */

export interface Candidate {
  word: string;
  probability: number;
}

export interface FillAnswer {
  text: string;
  /** The candidates of each mask. */
  masks: Candidate[][];
}
