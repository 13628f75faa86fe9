/** Requests to the server; its errors are one sentence each. */

import { translations, ui } from "./i18n.svelte";

const text = translations({
  silent: ["the server of the studio does not answer: start it again with keel studio", "studio 的服务器没有响应：请重新运行 keel studio"],
});

/** An input that the server refuses: its name, the problem, and the limit that it breaks. */
export interface Invalid {
  field: string;
  problem: string;
  limit: string | number | null;
}

export class ServerError extends Error {
  readonly invalid: Invalid | undefined;

  constructor(sentence: string, invalid?: Invalid) {
    super(sentence);
    this.invalid = invalid;
  }
}

/** What answers with messages of the library have beside their data. */
export interface Noted {
  notes: string[];
}

export function get<Answer>(path: string, signal?: AbortSignal): Promise<Answer> {
  return request<Answer>("GET", path, undefined, signal);
}

export function post<Answer>(path: string, body: object, signal?: AbortSignal): Promise<Answer> {
  return request<Answer>("POST", path, body, signal);
}

export async function request<Answer>(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Answer> {
  const headers: Record<string, string> = { "Accept-Language": ui.language };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const content = body === undefined ? {} : { body: JSON.stringify(body) };
  let response: Response;
  try {
    response = await fetch(`/api/${path}`, { method, headers, ...content, ...(signal ? { signal } : {}) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(text.silent);
  }
  const found: unknown = await response.json().catch(() => ({}));
  if (!response.ok) throw refusal(found, `${response.status} ${response.statusText}`);
  return found as Answer;
}

function refusal(found: unknown, fallback: string): ServerError {
  const { error, invalid } = found as { error?: string; invalid?: Invalid };
  return new ServerError(error ?? fallback, invalid);
}
