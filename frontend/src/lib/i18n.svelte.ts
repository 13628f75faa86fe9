/** The interface in English and Chinese. */

export type Language = "en" | "zh";

const STORED = "keel-language";

function initial(): Language {
  const given = new URLSearchParams(location.search).get("lang");
  if (given) localStorage.setItem(STORED, given);
  const wanted = given ?? localStorage.getItem(STORED) ?? navigator.language;
  return wanted.startsWith("zh") ? "zh" : "en";
}

class Interface {
  language = $state<Language>(initial());

  choose(language: Language): void {
    this.language = language;
    localStorage.setItem(STORED, language);
  }
}

export const ui = new Interface();

type Text = string | ((...values: never[]) => string);
/** A text in English, then in Chinese: leaving one out is an error of types. */
type Pair = readonly [en: Text, zh: Text];

/** The texts of a page or component, each in the language of the interface when it is read. */
export function translations<const T extends Record<string, Pair>>(pairs: T): { readonly [K in keyof T]: Widened<T[K][0]> } {
  const found = {};
  for (const [name, pair] of Object.entries(pairs)) {
    Object.defineProperty(found, name, { enumerable: true, get: () => pair[ui.language === "zh" ? 1 : 0] });
  }
  return found as { readonly [K in keyof T]: Widened<T[K][0]> };
}

type Widened<T> = T extends string ? string : T;

/** A number with separators of thousands. */
export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** A share as a percentage with as many digits as it needs. */
export function percent(share: number): string {
  if (share === 0 || share >= 0.0995) return `${(100 * share).toFixed(0)}%`;
  if (share >= 0.0005) return `${(100 * share).toFixed(1)}%`;
  return `${share.toExponential(0)}`;
}

/** Seconds as 0:07, 12:30 or 1:02:03. */
export function duration(seconds: number): string {
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const rest = String(whole % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** How long ago a time was, given in seconds since 1970. */
export function ago(time: number): string {
  const format = new Intl.RelativeTimeFormat(ui.language, { numeric: "auto" });
  const seconds = time - Date.now() / 1000;
  for (const [unit, size] of [["day", 86_400], ["hour", 3600], ["minute", 60]] as const) {
    if (Math.abs(seconds) >= size) return format.format(Math.round(seconds / size), unit);
  }
  return format.format(Math.round(seconds), "second");
}
