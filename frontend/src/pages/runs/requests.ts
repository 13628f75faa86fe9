/** Requests of the page Runs, with the types of their answers. */

export interface ListedRun {
  id: string;
  name: string;
  verb: string;
  steps: number;
  seconds: number;
  complete: boolean;
  /** When its log was last written, in seconds since 1970. */
  updated: number;
  error: string;
}

/** Step, seconds since the start of the run, value, and time of the clock. */
type Point = [step: number, seconds: number, value: number, time: number];
type TableData = [head: string[], rows: string[][]];

export interface ComparedRun {
  name: string;
  verb: string;
  curves: Record<string, Point[]>;
  steps: number;
  seconds: number;
  complete: boolean;
}

export interface RunsAnswer {
  runs: ComparedRun[];
  results: TableData;
  settings: TableData;
}
