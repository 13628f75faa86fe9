/** Requests to the server; its errors are one sentence each. */

import { translations } from "./i18n.svelte";

const text = translations({
  silent: ["the server of the studio does not answer: start it again with keel studio", "studio 的服务器没有响应：请重新运行 keel studio"],
});

export class ServerError extends Error {}

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
  const content = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  let response: Response;
  try {
    response = await fetch(`/api/${path}`, { method, ...content, ...(signal ? { signal } : {}) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(text.silent);
  }
  const found: unknown = await response.json().catch(() => ({}));
  if (!response.ok) throw new ServerError(sentence(found) ?? `${response.status} ${response.statusText}`);
  return found as Answer;
}

function sentence(found: unknown): string | undefined {
  return typeof found === "object" && found !== null && "error" in found ? String(found.error) : undefined;
}
