/** Changes of entries that may take long: they are followed until their end, and may fail for single entries. */
import { effect, signal } from "@preact/signals";
import { api, CALL_TIMEOUT_MS, data } from "../api/client.ts";
import { ApiError, asApiError, isRecord, isTemporary } from "../api/errors.ts";
import { session } from "../app/session.ts";
import { notify } from "../ui/Toasts.tsx";

/** An entry that a change of several entries left as it was. */
export interface Failure {
  path: string;
  message: string;
}

export interface Operation {
  key: number;
  title: string;
  state: "running" | "failed";
  done: number;
  total: number | null;
  message: string;
  failures: readonly Failure[];
}

/** The server answers with an operation to follow if the change takes longer. */
export const WAIT_S = 2;
const POLL_MS = 700;

export const operations = signal<readonly Operation[]>([]);
let lastKey = 0;

// The next user of this page must not read the names of the one before.
effect(() => {
  if (!session.isLoggedIn.value) operations.value = [];
});

/**
 * Run a change and return whether all of it succeeded. Its progress and what failed are shown in the list of transfers,
 * until the user removes them.
 */
export async function perform(title: string, done: string, start: () => Promise<unknown>): Promise<boolean> {
  lastKey += 1;
  const key = lastKey;
  const shown: Operation = { key, title, state: "running", done: 0, total: null, message: "", failures: [] };
  operations.value = [...operations.peek(), shown];
  try {
    const body = await start();
    const problem = isRunning(body) ? await followed(key, body.operation_id) : null;
    if (problem !== null) throw problem;
    if (isListed(key)) notify(done);
    forget(key);
    return true;
  } catch (caught) {
    const problem = asApiError(caught);
    change(key, { state: "failed", message: problem.message, failures: failuresOf(problem.body) });
    return false;
  }
}

export function forget(key: number): void {
  operations.value = operations.peek().filter((one) => one.key !== key);
}

/** Return the failed entries of a response to a change of several entries (Contract storage 7.8). */
export function failuresOf(body: Readonly<Record<string, unknown>>): readonly Failure[] {
  if (!isRecord(body.results)) return [];
  return Object.entries(body.results).flatMap(([path, result]) =>
    isRecord(result) && result.status !== 0 ? [{ path, message: textOf(result.message) }] : [],
  );
}

/** Follow an operation until it has ended or the user has logged out. Returns why it failed, or null. */
async function followed(key: number, id: string): Promise<ApiError | null> {
  while (isListed(key)) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    const progress = await progressOf(id);
    if (progress === null) continue;
    change(key, { done: progress.done, total: progress.total });
    if (progress.state === "running") continue;
    const result = isRecord(progress.result) ? progress.result : {};
    const isBad = progress.state === "failed" || (result.status ?? 0) !== 0;
    return isBad ? new ApiError(200, textOf(result.code), textOf(result.message), result) : null;
  }
  return null;
}

function isListed(key: number): boolean {
  return operations.peek().some((one) => one.key === key);
}

/** Return the progress; null if the server does not answer, in which case the operation goes on. */
async function progressOf(id: string) {
  try {
    const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
    return await data(api.GET("/api/v1/storage/operation", { params: { query: { id } }, signal }));
  } catch (caught) {
    if (isTemporary(caught)) return null;
    throw caught;
  }
}

function change(key: number, fields: Partial<Operation>): void {
  operations.value = operations.peek().map((one) => (one.key === key ? { ...one, ...fields } : one));
}

function isRunning(body: unknown): body is { operation_id: string } {
  return isRecord(body) && typeof body.operation_id === "string";
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}
