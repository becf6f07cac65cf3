/** Pauses between attempts of a call while the server or the network is gone. */
import { type ApiError, asApiError, isAbort } from "../api/errors.ts";

const FIRST_MS = 300;
const LONGEST_MS = 8000;

/** Pauses that double up to eight seconds, with jitter, so that the pages of many users do not return at once. */
export class Backoff {
  #attempts = 0;

  reset(): void {
    this.#attempts = 0;
  }

  /** Wait before the next attempt. Rejects with an AbortError when the signal is aborted. */
  async pause(signal: AbortSignal, atLeastS: number | null = null): Promise<void> {
    const longest = Math.min(FIRST_MS * 2 ** this.#attempts, LONGEST_MS);
    this.#attempts += 1;
    await sleep(Math.max(longest * (0.5 + Math.random() / 2), (atLeastS ?? 0) * 1000), signal);
  }
}

/** Wait. Rejects with the reason of the signal when it is aborted before. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const stop = () => {
    clearTimeout(timer);
    reject(signal.reason);
  };
  const timer = setTimeout(() => {
    signal.removeEventListener("abort", stop);
    resolve();
  }, ms);
  if (signal.aborted) stop();
  else signal.addEventListener("abort", stop, { once: true });
  return promise;
}

/** Return the error of a call if repeating the call may succeed, and throw it otherwise. */
export function passing(problem: unknown, signal: AbortSignal): ApiError {
  if (signal.aborted || isAbort(problem)) throw problem;
  const error = asApiError(problem);
  if (isPassing(error)) return error;
  throw error;
}

/** No response in time, a gateway without its server, or a server that is starting, stopping or without its database. */
function isPassing(error: ApiError): boolean {
  return error.code === "no_response" || [408, 502, 503, 504].includes(error.httpStatus);
}
