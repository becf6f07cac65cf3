import { CALL_TIMEOUT_MS } from "./client.ts";

/** Return a signal that ends with the given one or after a time. */
export function within(signal: AbortSignal, ms = CALL_TIMEOUT_MS): AbortSignal {
  return AbortSignal.any([signal, AbortSignal.timeout(ms)]);
}
