/** The import that this page prepares or follows. It stays while other views are open, and ends with the session. */
import { effect, signal } from "@preact/signals";
import { isAbort } from "../api/errors.ts";
import { type Connector, config, connectors } from "../app/config.ts";
import { session } from "../app/session.ts";
import { nameOf } from "../files/paths.ts";
import { type Edits, withoutTypes } from "./columns.ts";
import { type Metadata, type Reading, readingOf, type Source } from "./reading.ts";
import { guessMetadata } from "./server.ts";
import { canCreateTables, type Target, tableNameOf } from "./target.ts";
import { uploadFile } from "./upload.ts";
import { discardUpload } from "./uploads.ts";

/** A file with all that the user chose for its import. */
export interface Draft {
  source: Source;
  metadata: Metadata;
  reading: Reading;
  edits: Edits;
  target: Target;
}

export type Arrival =
  | { kind: "none"; problem: unknown }
  | { kind: "uploading"; name: string; sentBytes: number; totalBytes: number }
  | { kind: "detecting"; name: string };

/** How far the file is that will be the next draft. */
export const arrival = signal<Arrival>({ kind: "none", problem: null });
export const draft = signal<Draft | null>(null);

const MIB = 1024 * 1024;
let current = new AbortController();

/** Return the connectors in which tables can be created. */
export function targets(): Connector[] {
  return connectors.value.filter(canCreateTables);
}

/** Upload a file of this computer and detect its format. A file that was on its way before is given up. */
export async function openFile(file: File): Promise<void> {
  await arrive(async (abort) => {
    const limit = config.value?.importer.max_local_file_size_upload_limit ?? Number.POSITIVE_INFINITY;
    if (file.size > limit) throw new Error(tooLarge(limit));
    const uploading = { kind: "uploading", name: file.name, totalBytes: file.size } as const;
    arrival.value = { ...uploading, sentBytes: 0 };
    const upload = await uploadFile(
      file,
      (sentBytes) => {
        if (!abort.aborted) arrival.value = { ...uploading, sentBytes };
      },
      abort,
    );
    return { importType: "local", path: upload.file_path, name: file.name, sizeBytes: upload.size };
  });
}

/** Detect the format of a file in a store. */
export async function openStored(path: string): Promise<void> {
  await arrive(() => Promise.resolve({ importType: "remote", path, name: nameOf(path), sizeBytes: null }));
}

/** Give up the file that is on its way. */
export function cancelArrival(): void {
  current.abort();
  arrival.value = { kind: "none", problem: null };
}

/** Go back to the choice of a file. */
export function discard(): void {
  cancelArrival();
  draft.value = null;
}

export function change(changes: Partial<Draft>): void {
  if (draft.value !== null) draft.value = { ...draft.value, ...changes };
}

export function changeReading(changes: Partial<Reading>): void {
  if (draft.value !== null) change({ reading: { ...draft.value.reading, ...changes } });
}

/** Change the target. The types of the columns are those of the connector's dialect, so chosen ones go with it. */
export function changeTarget(changes: Partial<Target>): void {
  const now = draft.value;
  if (now === null) return;
  const target = { ...now.target, ...changes };
  const isOther = dialectOf(target.connector) !== dialectOf(now.target.connector);
  change({ target, edits: isOther ? withoutTypes(now.edits) : now.edits });
}

async function arrive(sourceOf: (abort: AbortSignal) => Promise<Source>): Promise<void> {
  current.abort();
  const controller = new AbortController();
  current = controller;
  let source: Source | null = null;
  try {
    source = await sourceOf(controller.signal);
    arrival.value = { kind: "detecting", name: source.name };
    const metadata = await guessMetadata(source, controller.signal);
    controller.signal.throwIfAborted();
    draft.value = newDraft(source, metadata);
    arrival.value = { kind: "none", problem: null };
  } catch (problem) {
    if (source !== null) void discardUpload(source);
    if (!controller.signal.aborted && !isAbort(problem)) arrival.value = { kind: "none", problem };
  }
}

function newDraft(source: Source, metadata: Metadata): Draft {
  const before = draft.value?.target;
  const usual = config.value?.app_config.editor?.default_sql_interpreter;
  const possible = targets();
  const connector = possible.find(({ id }) => id === (before?.connector ?? usual)) ?? possible[0];
  const target: Target = {
    connector: connector?.id ?? "",
    database: connector?.id === before?.connector ? (before?.database ?? "") : "",
    table: tableNameOf(source.name),
    ifExists: "error",
    badRows: "few",
  };
  return { source, metadata, reading: readingOf(metadata), edits: new Map(), target };
}

function dialectOf(connector: string): string | undefined {
  return connectors.value.find(({ id }) => id === connector)?.dialect;
}

function tooLarge(limitBytes: number): string {
  return `The file is too large. Files from this computer may have ${Math.round(limitBytes / MIB)} MiB. Upload it in Files, and import it from the store.`;
}

// The next user of this page must not find the file of the one before.
effect(() => {
  if (!session.isLoggedIn.value) discard();
});

// An upload is kept as long as its draft, also while its import runs: a failed import leads back to the form.
let uploaded: Source | null = null;
effect(() => {
  const source = draft.value?.source ?? null;
  if (uploaded !== null && uploaded.path !== source?.path) void discardUpload(uploaded);
  uploaded = source;
});

addEventListener("pagehide", ({ persisted }) => {
  // A page that the browser keeps may be shown again.
  if (!persisted && uploaded !== null) void discardUpload(uploaded);
});
