/** Requests of the page Data, with the types of their answers. */

import type { Noted } from "$lib/api";

type Fact = string | number | Record<string, string | number>;

export interface CheckAnswer extends Noted {
  /** Facts of each file; "labels" has the number of examples of each label. */
  files: Record<string, Record<string, Fact>>;
  /** The facts of each file but its labels, in the language of the interface. */
  facts: Record<string, { name: string; value?: string | number; parts?: { name: string; value: string | number }[] }[]>;
  findings: { severity: "error" | "warning" | "note"; where: string; cause: string; remedy: string }[];
}

/** An example that the model got wrong, or whose label may be wrong. */
export interface WrongExample {
  where: string;
  text: string;
  second: string | null;
  label: string;
  predicted: string;
  confidence: number;
}

export interface ErrorsAnswer extends Noted {
  main: string;
  /** The names of the scores in the language of the interface. */
  names: Record<string, string>;
  values: Record<string, { value: number; low: number; high: number }>;
  count: number;
  errors: WrongExample[];
  suspects?: { found: WrongExample[]; total: number; count: number } | null;
}
