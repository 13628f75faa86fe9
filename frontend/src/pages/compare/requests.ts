/** Requests of the page Compare, with the types of their answers. */

export interface Report {
  id: string;
  name: string;
  systems: string[];
  complete: boolean;
}

/** A system on a data set, trained with a number of examples. */
export interface Cell {
  row: string;
  column: string;
  /** "test", or the name of a second test file. */
  part: string;
  train_size: number;
  metric: string;
  score: number | null;
  low: number | null;
  high: number | null;
  pretraining_seconds: number | null;
  finetuning_seconds: number | null;
  parameters: number | null;
  peak_memory_bytes: number | null;
  texts_per_second: number | null;
  error?: string;
}

/** The difference of two systems on the same test items. */
export interface PairTest {
  column: string;
  part: string;
  first: string;
  second: string;
  difference: number;
  low: number;
  high: number;
  p_holm: number;
  detectable: number;
  verdict: string;
}

export interface ReportAnswer {
  cells: Cell[];
  tests: PairTest[];
  /** The names of the scores in the language of the interface. */
  names: Record<string, string>;
}
