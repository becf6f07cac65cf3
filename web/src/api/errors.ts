/** A call that failed. `code` is stable, `message` is the server's text for people (Contract platform 1.4). */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    /** The HTTP status; 0 if no response was received. */
    readonly httpStatus: number,
    readonly code: string,
    message: string,
    /** The body of the response, for fields of single calls such as `line` and `column`. */
    readonly body: Readonly<Record<string, unknown>> = {},
    /** Seconds after which the call may be repeated; null if the server did not say. */
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }
}

const TEMPORARY = new Set([0, 408, 429, 502, 503, 504]);
/** Timers of browsers end at once if they are longer than 2^31 ms. */
const MAX_PAUSE_S = 24 * 3600;
const WITHOUT_RESPONSE = "The server did not answer. Check the connection; the page continues when the server is back.";
const FOREIGN_RESPONSE = "The response was cut off, or came from a proxy in place of the server. Try again.";

/** Return the error of a failed response with this body, which may be JSON of any shape or text. */
export function errorOf(response: Response, body: unknown): ApiError {
  const fields = isRecord(body) ? body : {};
  const code = typeof fields.code === "string" ? fields.code : "";
  // The importer's errors have their text in `error` (Contract importer 2.2).
  const message =
    [fields.message, fields.error, fields.detail, response.statusText].find(isText) ?? `HTTP ${response.status}`;
  const pause = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return new ApiError(
    response.status,
    code,
    withFieldErrors(message, fields),
    fields,
    Number.isNaN(pause) ? null : Math.min(Math.max(pause, 0), MAX_PAUSE_S),
  );
}

/** Return an exception as an error that can be shown, with the cause if it is one of ours. */
export function asApiError(problem: unknown): ApiError {
  if (problem instanceof ApiError) return problem;
  if (problem instanceof TypeError || isTimeout(problem)) return new ApiError(0, "no_response", WITHOUT_RESPONSE);
  if (problem instanceof SyntaxError) return new ApiError(0, "no_response", FOREIGN_RESPONSE);
  return new ApiError(0, "page_error", problem instanceof Error ? problem.message : String(problem));
}

/** Return whether an exception only says that the page itself ended the call. */
export function isAbort(problem: unknown): boolean {
  return problem instanceof DOMException && problem.name === "AbortError";
}

/** Return whether the same call may succeed later: no answer, too many calls, or a server that is not ready. */
export function isTemporary(problem: unknown): boolean {
  if (problem instanceof ApiError) return TEMPORARY.has(problem.httpStatus) && problem.code !== "page_error";
  return problem instanceof TypeError || isTimeout(problem);
}

function isTimeout(problem: unknown): boolean {
  return problem instanceof DOMException && problem.name === "TimeoutError";
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}

/** Return the message, followed by the texts of `errors` (parameter or setting to texts). */
function withFieldErrors(message: string, fields: Record<string, unknown>): string {
  const errors = fields.errors;
  if (!isRecord(errors)) return message;
  const texts = Object.entries(errors).map(([name, some]) => `${name}: ${Array.isArray(some) ? some.join(" ") : some}`);
  return [message, ...texts].join("\n");
}
