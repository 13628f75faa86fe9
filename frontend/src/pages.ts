/** The pages of the studio. To add one: its component, and one line here. */

import type { Component } from "svelte";
import { translations } from "$lib/i18n.svelte";
import type { Icon } from "$components/icons";

export interface PageEntry {
  /** First part of its path. */
  id: keyof typeof names;
  group: keyof typeof groups;
  icon: Icon;
  load: () => Promise<{ default: Component }>;
}

export const names = translations({
  try: ["Try", "试用"],
  words: ["Words", "词语"],
  attention: ["Attention", "注意力"],
  layers: ["Layers", "各层"],
  trace: ["Trace", "张量追踪"],
  explain: ["Explain", "解释"],
  bias: ["Bias", "偏见"],
  figures: ["Figures", "图示"],
  runs: ["Runs", "训练"],
  compare: ["Compare", "对比"],
  claims: ["Claims", "论断"],
  data: ["Data", "数据"],
});

export const groups = translations({
  use: ["Use", "使用"],
  inside: ["Look inside", "内部"],
  project: ["Project", "项目"],
});

export const pages: readonly PageEntry[] = [
  { id: "try", group: "use", icon: "try", load: () => import("./pages/try/Try.svelte") },
  { id: "words", group: "use", icon: "words", load: () => import("./pages/words/Words.svelte") },
  { id: "attention", group: "inside", icon: "attention", load: () => import("./pages/attention/Attention.svelte") },
  { id: "layers", group: "inside", icon: "layers", load: () => import("./pages/layers/Layers.svelte") },
  { id: "trace", group: "inside", icon: "trace", load: () => import("./pages/trace/Trace.svelte") },
  { id: "explain", group: "inside", icon: "explain", load: () => import("./pages/explain/Explain.svelte") },
  { id: "bias", group: "inside", icon: "bias", load: () => import("./pages/bias/Bias.svelte") },
  { id: "figures", group: "inside", icon: "figures", load: () => import("./pages/figures/Figures.svelte") },
  { id: "runs", group: "project", icon: "runs", load: () => import("./pages/runs/Runs.svelte") },
  { id: "compare", group: "project", icon: "compare", load: () => import("./pages/compare/Compare.svelte") },
  { id: "claims", group: "project", icon: "claims", load: () => import("./pages/claims/Claims.svelte") },
  { id: "data", group: "project", icon: "data", load: () => import("./pages/data/Data.svelte") },
];
