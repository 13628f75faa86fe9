/** Sentences of the server in the words of a page: inputs have their labels instead of names and command-line options. */

import { ServerError } from "./api";
import { count, translations } from "./i18n.svelte";

/** The labels of a page's inputs, by their names in requests; other texts of the page may be among them. */
export type Labels = Readonly<Record<string, unknown>>;

const text = translations({
  label: [(name: string) => `“${name}”`, (name: string) => `“${name}”`],
  options: ["Options that begin with -- belong to the keel command.", "以 -- 开头的是 keel 命令的选项。"],
  join: [(one: string, other: string) => `${one.replace(/[.。]?$/, ".")} ${other}`, (one: string, other: string) => `${one.replace(/[.。]?$/, "。")}${other}`],
});

/** Problems of an input, by the names that src/keel/studio/invalid_inputs.py gives them. */
const problems = translations({
  missing: [(name: string, _limit: string) => `${name} is missing`, (name: string, _limit: string) => `请填写${name}`],
  greater_than_equal: [(name: string, limit: string) => `${name} must be ${limit} or more`, (name: string, limit: string) => `${name}不能小于 ${limit}`],
  greater_than: [(name: string, limit: string) => `${name} must be more than ${limit}`, (name: string, limit: string) => `${name}必须大于 ${limit}`],
  less_than_equal: [(name: string, limit: string) => `${name} must be ${limit} or less`, (name: string, limit: string) => `${name}不能大于 ${limit}`],
  string_too_long: [(name: string, limit: string) => `${name} must have ${limit} characters or fewer`, (name: string, limit: string) => `${name}不能超过 ${limit} 个字符`],
  too_long: [(name: string, limit: string) => `${name} must have ${limit} entries or fewer`, (name: string, limit: string) => `${name}不能超过 ${limit} 项`],
  too_short: [(name: string, limit: string) => `${name} must have ${limit} entries or more`, (name: string, limit: string) => `${name}至少要有 ${limit} 项`],
  whole_number: [(name: string, _limit: string) => `${name} must be a whole number`, (name: string, _limit: string) => `${name}必须是整数`],
  number: [(name: string, _limit: string) => `${name} must be a number`, (name: string, _limit: string) => `${name}必须是数字`],
  text: [(name: string, _limit: string) => `${name} must be a text`, (name: string, _limit: string) => `${name}必须是文本`],
  list: [(name: string, _limit: string) => `${name} must be a list`, (name: string, _limit: string) => `${name}必须是列表`],
  choice: [(name: string, limit: string) => `${name} must be one of ${limit}`, (name: string, limit: string) => `${name}只能是 ${limit.replace(" or ", "或")}`],
  unknown: [(name: string, _limit: string) => `${name} is no input of this page`, (name: string, _limit: string) => `这个页面没有${name}这一项`],
  invalid: [(name: string, _limit: string) => `${name} has a value that is not possible`, (name: string, _limit: string) => `${name}的值无效`],
});

/** A whole command, which stays as it is, or an option. */
const OPTION = /(\bkeel [a-z]+ [^:;,()`]*)|(?<![\w/\\-])--([a-z][a-z0-9._-]*[a-z0-9])(?![\w/])/g;
/** Options that have another name in requests. */
const NAMES: Readonly<Record<string, string>> = { beam: "beams", in: "among", from: "from_word", to: "to_word" };

function labelOf(name: string, labels: Labels): string | undefined {
  const found = labels[name];
  return typeof found === "string" ? text.label(found) : undefined;
}

/** A sentence in which options that are inputs of the page have their labels. */
export function withLabels(sentence: string, labels: Labels): string {
  return sentence.replace(OPTION, (whole: string, command: string | undefined, option: string | undefined) => {
    if (command !== undefined || option === undefined) return whole;
    const name = option.split(".").at(-1)?.replaceAll("-", "_") ?? "";
    return labelOf(NAMES[name] ?? name, labels) ?? whole;
  });
}

/** What options are, if a sentence names some that are no inputs of the page. */
export function aboutOptions(sentence: string): string {
  return [...sentence.matchAll(OPTION)].some(([, command]) => command === undefined) ? text.options : "";
}

/** A note of the server for a page with these labels. */
export function noteFor(sentence: string, labels: Labels): string {
  const shown = withLabels(sentence, labels);
  const about = aboutOptions(shown);
  return about ? text.join(shown, about) : shown;
}

/** The sentence of an error for a page with these labels. */
export function errorFor(error: unknown, labels: Labels = {}): string {
  if (!(error instanceof Error)) return String(error);
  const invalid = error instanceof ServerError ? error.invalid : undefined;
  if (!invalid || !isProblem(invalid.problem)) return noteFor(error.message, labels);
  const limit = typeof invalid.limit === "number" ? count(invalid.limit) : (invalid.limit ?? "");
  return problems[invalid.problem](labelOf(invalid.field, labels) ?? invalid.field, limit);
}

function isProblem(name: string): name is keyof typeof problems {
  return name in problems;
}
