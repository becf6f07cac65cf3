/** The name of the logged-in user. */
import { CALL_TIMEOUT_MS } from "../api/client.ts";
import { config, loadConfig } from "./config.ts";

/** Return the name of the user. Throws ApiError. */
export async function userName(): Promise<string> {
  if (config.value === null) await loadConfig(AbortSignal.timeout(CALL_TIMEOUT_MS));
  return config.value?.username ?? "";
}
