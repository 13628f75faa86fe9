/** Names of the figures, and texts for those that need one. */

import { translations } from "$lib/i18n.svelte";

export const names = translations({
  rnn: ["Recurrent network, unrolled", "循环网络按时间展开"],
  cnn: ["CNN for text", "文本 CNN"],
  window: ["Window against whole sentence", "窗口与整句"],
  block: ["Transformer block", "Transformer 块"],
  networks: ["ELMo, GPT and BERT", "ELMo、GPT 与 BERT"],
  input: ["Input embeddings", "输入嵌入"],
  units: ["Masking units of ERNIE", "ERNIE 的掩码单元"],
  heads: ["Task heads", "任务头"],
  "gpt-inputs": ["Task inputs of GPT", "GPT 的任务输入"],
  tasks: ["Families of tasks", "任务的种类"],
  sizes: ["Sizes of networks", "网络规模"],
  family: ["Family tree", "谱系图"],
});

export function nameOf(figure: string): string {
  return (names as Record<string, string>)[figure] ?? figure;
}

/** Figures that need a text, with one that the bundled encoder reads. */
export const texts: Readonly<Record<string, string>> = { input: "中国的首都是北京。", units: "他在上海交通大学研究人工智能。" };
