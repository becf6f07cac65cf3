/** The uploads of the user. They go on while other views are open, and are found again after a reload. */
import { computed, effect, signal } from "@preact/signals";
import { isRecord } from "../api/errors.ts";
import { config } from "../app/config.ts";
import { session } from "../app/session.ts";
import { tabStorage } from "../app/storage.ts";
import { newUuid, planOf } from "./parts.ts";
import { Upload, type UploadRecord } from "./Upload.ts";

/** Two files with two parts each leave two of the browser's six connections for other calls. */
const FILES_AT_ONCE = 2;
const DEFAULT_PART_BYTES = 5 * 1024 * 1024;
const NOTICE_MS = 1000;

export const uploads = signal<readonly Upload[]>([]);
/** Changes after files were completed, at most once a second, so that listings can be loaded again. */
export const completed = signal(0);

const openRecords = computed(() => uploads.value.filter((one) => one.isOpen.value).map((one) => one.record));
const isBusy = computed(() => uploads.value.some((one) => ["running", "offline", "waiting"].includes(one.state.value)));
const running = new Set<Upload>();
let isNoticeDue = false;
/** Where the uploads of the user are stored; null without a user. */
let key: string | null = null;

// The uploads of one user are neither shown to the next one nor sent with the rights of the next one.
effect(() => {
  const next = session.isLoggedIn.value ? `queryserver.uploads.${session.userId.value ?? ""}` : null;
  for (const one of uploads.peek()) one.pause();
  uploads.value = next === null ? [] : stored(next);
  key = next;
});
effect(() => {
  const records = JSON.stringify(openRecords.value);
  if (key !== null) tabStorage.set(key, records);
});
effect(() => (isBusy.value ? addEventListener("beforeunload", warn) : removeEventListener("beforeunload", warn)));

/** Send files to a directory. A file whose upload was interrupted by a reload goes on where it was. */
export function upload(files: readonly File[], directory: string): void {
  const added: Upload[] = [];
  for (const file of files) {
    const known = uploads.peek().find((one) => one.state.peek() === "detached" && one.matches(file, directory));
    if (known) known.attach(file);
    else added.push(new Upload(recordOf(file, directory), file));
  }
  uploads.value = [...uploads.peek(), ...added];
  pump();
}

/** Go on with an upload that was paused, has failed, or waits for its file. */
export function resume(one: Upload, overwrite = false): void {
  one.resume(overwrite);
  pump();
}

/** Remove an upload from the list; if it is open, its parts are deleted. */
export async function remove(one: Upload): Promise<void> {
  uploads.value = uploads.peek().filter((other) => other !== one);
  await one.discard();
}

export function removeEnded(): void {
  uploads.value = uploads.peek().filter((one) => one.isOpen.peek());
}

function pump(): void {
  const waiting = uploads.peek().filter((one) => one.state.peek() === "waiting" && !running.has(one));
  for (const one of waiting.slice(0, Math.max(0, FILES_AT_ONCE - running.size))) {
    running.add(one);
    void one.run().finally(() => {
      running.delete(one);
      if (one.state.peek() === "done") noteCompleted();
      pump();
    });
  }
}

function noteCompleted(): void {
  if (isNoticeDue) return;
  isNoticeDue = true;
  setTimeout(() => {
    isNoticeDue = false;
    completed.value += 1;
  }, NOTICE_MS);
}

function recordOf(file: File, directory: string): UploadRecord {
  const preferred = config.peek()?.storage_browser.file_upload_chunk_size ?? DEFAULT_PART_BYTES;
  return {
    id: newUuid(),
    name: file.name,
    size: file.size,
    lastModified: file.lastModified,
    directory,
    overwrite: false,
    partBytes: planOf(file.size, preferred).partBytes,
  };
}

function stored(name: string): Upload[] {
  try {
    const records: unknown = JSON.parse(tabStorage.get(name) ?? "[]");
    return Array.isArray(records) ? records.filter(isUploadRecord).map((record) => new Upload(record, null)) : [];
  } catch {
    return [];
  }
}

function isUploadRecord(value: unknown): value is UploadRecord {
  if (!isRecord(value)) return false;
  const texts = [value.id, value.name, value.directory];
  const numbers = [value.size, value.lastModified, value.partBytes];
  return texts.every((one) => typeof one === "string") && numbers.every((one) => typeof one === "number");
}

function warn(event: Event): void {
  event.preventDefault();
}
