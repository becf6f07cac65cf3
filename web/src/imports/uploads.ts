/** Removes uploads that no import needs any more: a user may have a limited number of them (Contract importer 3). */
import { api, CALL_TIMEOUT_MS, data } from "../api/client.ts";
import { ApiError } from "../api/errors.ts";
import { session } from "../app/session.ts";
import type { Source } from "./reading.ts";

const RETRY_MS = 30_000;

/**
 * Remove the upload of a source; files of stores stay. While an import reads the upload, it is tried again every 30 s.
 * Never rejects: an upload that cannot be removed expires by itself.
 */
export async function discardUpload(source: Source): Promise<void> {
  if (source.importType !== "local") return;
  while (session.isLoggedIn.value && (await isInUse(source.path))) {
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function isInUse(path: string): Promise<boolean> {
  // A page that is closed still sends the call.
  const options = { keepalive: true, signal: AbortSignal.timeout(CALL_TIMEOUT_MS) };
  try {
    await data(api.POST("/api/v1/importer/upload/discard", { body: { file_path: path }, ...options }));
  } catch (problem) {
    return problem instanceof ApiError && problem.code === "file_in_use";
  }
  return false;
}
