/** Maps of words and texts, as the server answers them. */

import type { Noted } from "./api";
import { bytes } from "./pixels";

export interface Cluster {
  /** Its first typical words. */
  name: string;
  size: number;
  words: { word: string; score: number }[];
  /** Those nearest to its centre. */
  examples: string[];
}

export interface MapAnswer extends Noted {
  /** Words, the most frequent first, or texts. */
  names: string[];
  /** Positions x, y, x, y with 16 bits, little-endian, in base64; the origin is at the lower left. */
  points: string;
  width: number;
  height: number;
  /** How the map was made. */
  caption: string;
  clusters: {
    /** The cluster of each point as a byte, in base64. */
    groups: string;
    /** The largest first. */
    clusters: Cluster[];
    /** Mean silhouette. */
    silhouette: number;
    /** Mean silhouette by the number of clusters, where it was chosen by that. */
    tried: Record<string, number>;
    /** That the clusters overlap. */
    note?: string;
  } | null;
}

/** The points of a map as numbers: x, y, x, y. */
export function positions(answer: MapAnswer): Uint16Array {
  const data = new DataView(bytes(answer.points).buffer);
  return Uint16Array.from({ length: 2 * answer.names.length }, (_, at) => data.getUint16(2 * at, true));
}

/** The cluster of each point; undefined without clusters. */
export function groupsOf(answer: MapAnswer): Uint8Array | undefined {
  return answer.clusters ? bytes(answer.clusters.groups) : undefined;
}
