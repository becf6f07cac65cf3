/** Sends a file of this computer to the server, with its progress, which `fetch` does not report. */
import type { Schemas } from "../api/client.ts";
import { ApiError, asApiError, errorOf, isRecord } from "../api/errors.ts";
import type { paths } from "../api/schema.d.ts";
import { urlPrefix } from "../app/prefix.ts";
import { session } from "../app/session.ts";

const PATH = "/api/v1/importer/upload/file" satisfies keyof paths;
/** An upload that sends nothing for this time is ended; so is one whose response takes longer. */
const STALLED_MS = 60_000;

export type Upload = Pick<Schemas["ImportedFile"], "file_path" | "size">;

/**
 * Upload a file for imports (Contract importer 3). `onProgress` gets the bytes sent so far. Rejects with ApiError, and
 * with an AbortError after an abort.
 */
export async function uploadFile(
  file: File,
  onProgress: (sentBytes: number) => void,
  signal: AbortSignal,
): Promise<Upload> {
  let response = await send(file, onProgress, signal);
  if (response.status === 401 && (await session.renew())) response = await send(file, onProgress, signal);
  const body: unknown = await response.json().catch(() => null);
  if (!response.ok || !isUpload(body)) throw errorOf(response, body);
  return body;
}

function isUpload(body: unknown): body is Upload {
  return isRecord(body) && typeof body.file_path === "string" && typeof body.size === "number";
}

function send(file: File, onProgress: (sentBytes: number) => void, signal: AbortSignal): Promise<Response> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(signal.reason);
      return;
    }
    const request = new XMLHttpRequest();
    let watch = 0;
    const expect = () => {
      clearTimeout(watch);
      watch = window.setTimeout(() => {
        reject(new ApiError(0, "upload_stalled", `Nothing was sent for ${STALLED_MS / 1000} s. Try again.`));
        request.abort();
      }, STALLED_MS);
    };
    const cancel = () => {
      reject(signal.reason);
      request.abort();
    };
    request.open("POST", urlPrefix + PATH);
    const token = session.accessToken.value;
    if (token !== null) request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.upload.onprogress = ({ loaded }) => {
      expect();
      // The bytes include the frame of the form.
      onProgress(Math.min(loaded, file.size));
    };
    request.onload = () => resolve(responseOf(request));
    request.onerror = () => reject(asApiError(new TypeError("upload")));
    request.onloadend = () => {
      clearTimeout(watch);
      signal.removeEventListener("abort", cancel);
    };
    signal.addEventListener("abort", cancel);
    const form = new FormData();
    form.append("file", file, file.name);
    expect();
    request.send(form);
  });
}

function responseOf(request: XMLHttpRequest): Response {
  const pause = request.getResponseHeader("Retry-After");
  return new Response(request.responseText, {
    status: request.status,
    statusText: request.statusText,
    headers: pause === null ? {} : { "Retry-After": pause },
  });
}
