/** Requests of the page Claims, with the types of their answers. */

export interface Claim {
  number: number;
  title: string;
  /** About how long its experiment takes on two cores. */
  minutes: number;
}

export interface Job {
  state: "running" | "done" | "failed" | "cancelled";
  /** Messages so far. */
  lines: string[];
  result: { claim: number; title: string; holds: boolean | null; figures: string; rows: string[] } | null;
  error: string;
}
