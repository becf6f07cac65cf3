/** Responses of the API for the tests of this folder. */
import { vi } from "vitest";
import type { QueryStatus } from "./problem.ts";
import type { ResultPage } from "./rows.ts";

interface Call {
  path: string;
  headers: Headers;
  signal: AbortSignal;
  /** The body, if it is JSON. */
  body: Record<string, unknown>;
}
type Handler = (call: Call) => Response | Promise<Response>;

/** Serve calls by the part of their path after `/api/v1/`. Returns the list of calls, which grows. */
export function serve(handlers: Record<string, Handler>): Call[] {
  const calls: Call[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    const path = new URL(request.url, "http://server").pathname.replace(/^.*\/api\/v1\//, "");
    const text = await request.clone().text();
    const call = { path, headers: request.headers, signal: request.signal, body: text ? JSON.parse(text) : {} };
    calls.push(call);
    const key = Object.keys(handlers).find((one) => path.startsWith(one));
    const response = await handlers[key ?? ""]?.(call);
    if (response === undefined) throw new Error(`no answer for ${path}`);
    if (response.type === "error") throw new TypeError("Failed to fetch");
    return response;
  });
  return calls;
}

/** Answer with each response once; the last one is repeated. */
export function answers(...responses: Response[]): Handler {
  return () => {
    const next = responses.length > 1 ? responses.shift() : responses[0];
    return next?.type === "error" ? next : (next?.clone() ?? Response.error());
  };
}

/** An event stream that ends after these events, whose ids count from 1. */
export function events(...list: ReadonlyArray<readonly [string, object]>): Response {
  const text = list.map(([name, body], index) => `id: ${index + 1}\nevent: ${name}\ndata: ${JSON.stringify(body)}\n\n`);
  return new Response(`retry: 2000\n\n${text.join("")}`, { headers: { "Content-Type": "text/event-stream" } });
}

export function statusOf(state: QueryStatus["state"], more: Partial<QueryStatus> = {}): QueryStatus {
  return {
    status: state === "success" ? "available" : state === "timed_out" ? "failed" : state,
    state,
    has_result_set: ["waiting", "running", "available"].includes(state),
    message: "",
    rows: 0,
    truncated: false,
    truncated_reason: null,
    truncated_by: null,
    modified_row_count: null,
    expires_at: null,
    submitted: "2026-11-30T20:00:00Z",
    started: null,
    ended: null,
    elapsed_ms: 0,
    queued_ms: 0,
    queue_position: null,
    ...more,
  };
}

export function pageOf(startRow: number, rows: unknown[][], total: number | null): ResultPage {
  const columns = rows[0]?.length ?? 1;
  return {
    has_more: total === null || startRow + rows.length < total,
    type: "table",
    isEscaped: false,
    meta: Array.from({ length: columns }, (_, index) => ({
      name: `c${index}`,
      type: "STRING_TYPE",
      comment: "",
      native_type: "varchar",
    })),
    data: rows,
    start_row: startRow,
    rows_total: total,
    truncated: false,
    truncated_reason: null,
    truncated_by: null,
    expires_at: null,
  };
}
