/** The tree of a decoding trace: which hypotheses are shown, and where. */

import { percent } from "$lib/i18n.svelte";
import { textWidth, visible } from "$lib/measure";
import type { DecodedText, DecodingTrace, Hypothesis } from "./requests";

export const BOX = 26;
export const MAX_STEPS = 40;
const GAP = 30;
const ROW = 34;
const TOP = 26;
/** Candidates of each step that are shown beside the chosen one. */
const SHOWN = 5;

export interface TreeNode {
  index: number;
  node: Hypothesis;
  label: string;
  x: number;
  y: number;
  width: number;
  /** On the way to the best answer. */
  best: boolean;
  /** Without a successor in the tree, before the end. */
  lost: boolean;
}

export interface Tree {
  nodes: TreeNode[];
  links: { from: TreeNode; to: TreeNode }[];
  columns: { step: number; x: number }[];
  width: number;
  height: number;
}

export function decodingTree(text: DecodedText, strategy: DecodingTrace["strategy"]): Tree {
  const path = new Set(text.path);
  const columns = new Map<number, number[]>();
  text.hypotheses.forEach((node, index) => {
    if (node.step <= MAX_STEPS) columns.set(node.step, [...(columns.get(node.step) ?? []), index]);
  });
  const placed = new Map<number, TreeNode>();
  const tree: Tree = { nodes: [], links: [], columns: [], width: 1, height: 1 };
  const last = Math.max(0, ...columns.keys());
  for (const [step, indices] of [...columns].sort(([a], [b]) => a - b)) {
    const ranked = rank(text, indices);
    const shown = ranked.filter((index, at) =>
      strategy === "beam search" ? text.hypotheses[index]?.outcome !== "dropped" : at < SHOWN || path.has(index),
    );
    const x = tree.width;
    let widest = 0;
    shown.forEach((index, row) => {
      const node = text.hypotheses[index];
      if (!node) return;
      const label = `${visible(node.token)} ${percent(node.probability)}`;
      widest = Math.max(widest, textWidth(label, 14, 560) + 18);
      const lost = !path.has(index) && node.outcome !== "ended" && step !== last;
      placed.set(index, { index, node, label, x, y: TOP + row * ROW, width: 0, best: path.has(index), lost });
      tree.height = Math.max(tree.height, TOP + row * ROW + BOX + 2);
    });
    for (const index of shown) {
      const box = placed.get(index);
      const parent = placed.get(text.hypotheses[index]?.parent ?? -1);
      if (!box) continue;
      box.width = widest;
      if (parent) {
        parent.lost = false;
        tree.links.push({ from: parent, to: box });
      }
    }
    if (shown.length) tree.columns.push({ step, x });
    tree.width = x + widest + GAP;
  }
  tree.width = Math.max(1, tree.width - GAP + 2);
  tree.nodes = [...placed.values()];
  return tree;
}

/** The hypotheses of a step, the most probable first. */
function rank(text: DecodedText, indices: readonly number[]): number[] {
  const value = (index: number) => text.hypotheses[index]?.log_probability ?? 0;
  return [...indices].sort((a, b) => value(b) - value(a));
}

/** The last tokens before a hypothesis, as text. */
export function textBefore(text: DecodedText, index: number, count = 6): string {
  const tokens: string[] = [];
  let at = text.hypotheses[index]?.parent ?? -1;
  while (at >= 0) {
    tokens.unshift(text.hypotheses[at]?.token ?? "");
    at = text.hypotheses[at]?.parent ?? -1;
  }
  const all = [...text.prompt, ...tokens];
  const spaced = all.some((token) => /^\s/.test(token));
  return (all.length > count ? "… " : "") + all.slice(-count).join(spaced ? "" : " ").trim();
}
