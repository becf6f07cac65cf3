/** One file that is sent to a store in parts. A cut of the connection delays it; a reload of the page detaches it. */
import { computed, signal } from "@preact/signals";
import { api, CALL_TIMEOUT_MS, data } from "../api/client.ts";
import { ApiError, asApiError, isTemporary } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";
import { allParts, arrivedBytes, newUuid, type PartPlan, pauseMs, planOf, rangeOf, sha256 } from "./parts.ts";

/**
 * `waiting`: for other files. `offline`: until the server answers again. `detached`: the page was reloaded, and the
 * browser needs the permission to read the file again.
 */
export type UploadState = "waiting" | "running" | "offline" | "paused" | "detached" | "done" | "failed";

/** What a reload of the page needs to go on. */
export interface UploadRecord {
  id: string;
  name: string;
  size: number;
  lastModified: number;
  directory: string;
  overwrite: boolean;
  partBytes: number;
}

const PARTS_AT_ONCE = 2;
/** A part of 5 MiB takes this long at 17 KiB/s. */
const PART_TIMEOUT_MS = 300_000;

export class Upload {
  readonly state = signal<UploadState>("waiting");
  readonly arrived = signal(0);
  readonly problem = signal<ApiError | null>(null);
  readonly isOpen = computed(() => !["done", "failed"].includes(this.state.value));

  #record: UploadRecord;
  #file: File | null;
  readonly #plan: PartPlan;
  #missing: Set<number>;
  /** Whether the server may have parts of an earlier attempt. */
  #isBegun: boolean;
  #attempt = 0;
  #running: AbortController | null = null;

  /** Without a file, the upload is one of an earlier page. */
  constructor(record: UploadRecord, file: File | null) {
    this.#record = record;
    this.#file = file;
    this.#plan = planOf(record.size, record.partBytes);
    this.#missing = new Set(allParts(this.#plan));
    this.#isBegun = file === null;
    if (file === null) this.state.value = "detached";
  }

  get record(): UploadRecord {
    return this.#record;
  }

  /** Return whether a chosen file is the one of this upload, as far as the browser says. */
  matches(file: File, directory: string): boolean {
    const { name, size, lastModified } = this.#record;
    const isSame = file.name === name && file.size === size && file.lastModified === lastModified;
    return isSame && directory === this.#record.directory;
  }

  attach(file: File): void {
    this.#file = file;
    this.state.value = "waiting";
  }

  pause(): void {
    if (!this.isOpen.peek()) return;
    this.#running?.abort();
    this.state.value = this.#file === null ? "detached" : "paused";
  }

  /** Let a paused or failed upload wait for its turn; with `overwrite`, as one that replaces the file. */
  resume(overwrite = false): void {
    if (overwrite) {
      // The first part fixes whether a file is replaced.
      this.#record = { ...this.#record, id: newUuid(), overwrite: true };
      this.#startOver();
    }
    this.problem.value = null;
    this.state.value = "waiting";
  }

  /** End the upload and delete its parts at the server. */
  async discard(): Promise<void> {
    this.#running?.abort();
    if (!this.#isBegun || this.state.peek() === "done") return;
    const params = { query: { qquuid: this.#record.id } };
    try {
      await data(api.DELETE("/api/v1/storage/upload/chunks", { params, signal: AbortSignal.timeout(CALL_TIMEOUT_MS) }));
    } catch (caught) {
      if (!isUnknown(caught)) throw caught;
    }
  }

  /** Send what is missing until the file is complete. Returns when it is, or when it was paused or has failed. */
  async run(): Promise<void> {
    const file = this.#file;
    if (file === null || this.#running !== null) return;
    const running = new AbortController();
    this.#running = running;
    this.state.value = "running";
    try {
      while (!running.signal.aborted && !(await this.#try(file, running.signal))) await this.#rest(running.signal);
    } finally {
      this.#running = null;
    }
  }

  /** Return whether the upload has ended. */
  async #try(file: File, signal: AbortSignal): Promise<boolean> {
    try {
      await this.#compare(signal);
      await this.#sendAll(file, signal);
      await this.#complete(signal);
      this.state.value = "done";
      return true;
    } catch (caught) {
      if (signal.aborted) return true;
      const problem = asApiError(caught);
      const isOver = !isTemporary(problem) && problem.code !== "operation_in_progress";
      this.problem.value = problem;
      this.state.value = isOver ? "failed" : "offline";
      return isOver;
    }
  }

  async #rest(signal: AbortSignal): Promise<void> {
    await sleep(pauseMs(this.#attempt, this.problem.peek()?.retryAfterS ?? null), signal);
    this.#attempt += 1;
    if (!signal.aborted) this.state.value = "running";
  }

  /** Get from the server which parts are missing. An upload that has expired there begins again. */
  async #compare(signal: AbortSignal): Promise<void> {
    if (!this.#isBegun) return;
    const params = { query: { qquuid: this.#record.id } };
    try {
      const state = await data(api.GET("/api/v1/storage/upload/chunks", { params, signal: within(signal) }));
      this.#missing = new Set(state.missing_parts);
      this.#note();
    } catch (caught) {
      if (!isUnknown(caught)) throw caught;
      this.#startOver();
    }
  }

  async #sendAll(file: File, signal: AbortSignal): Promise<void> {
    const queue = [...this.#missing].sort((a, b) => a - b);
    // The first part is sent alone, since it fixes the target and may be refused.
    if (!this.#isBegun) await this.#send(file, queue.shift() ?? 0, signal);
    const failed = new AbortController();
    const both = AbortSignal.any([signal, failed.signal]);
    const work = async () => {
      for (let part = queue.shift(); part !== undefined; part = queue.shift()) await this.#send(file, part, both);
    };
    const workers = Array.from({ length: PARTS_AT_ONCE }, () =>
      work().catch((caught: unknown) => {
        failed.abort();
        throw caught;
      }),
    );
    // The first failure is the cause; the other part then ends by the abort.
    const ends = Promise.allSettled(workers);
    try {
      await Promise.all(workers);
    } finally {
      await ends;
    }
  }

  async #send(file: File, part: number, signal: AbortSignal): Promise<void> {
    const [start, end] = rangeOf(this.#plan, part);
    const bytes = await file.slice(start, end).arrayBuffer();
    const digest = await sha256(bytes);
    const body = {
      qquuid: this.#record.id,
      qqpartindex: part,
      qqpartbyteoffset: start,
      qqchunksize: this.#plan.partBytes,
      qqtotalfilesize: this.#plan.size,
      qqtotalparts: this.#plan.parts,
      qqfilename: this.#record.name,
      dest: this.#record.directory,
      overwrite: this.#record.overwrite,
      ...(digest === null ? {} : { sha256: digest }),
      file: this.#record.name,
    };
    const bodySerializer = () => formOf(body, bytes);
    const limited = within(signal, PART_TIMEOUT_MS);
    await data(api.POST("/api/v1/storage/upload/chunks", { body, bodySerializer, signal: limited }));
    this.#isBegun = true;
    this.#attempt = 0;
    this.#missing.delete(part);
    this.#note();
  }

  async #complete(signal: AbortSignal): Promise<void> {
    const { id, name, directory, size, overwrite } = this.#record;
    const body = {
      qquuid: id,
      qqfilename: name,
      dest: directory,
      qqtotalfilesize: size,
      qqtotalparts: this.#plan.parts,
      overwrite,
    };
    await data(api.POST("/api/v1/storage/upload/complete", { body, signal: within(signal, PART_TIMEOUT_MS) }));
  }

  #startOver(): void {
    this.#missing = new Set(allParts(this.#plan));
    this.#isBegun = false;
    this.#note();
  }

  #note(): void {
    this.arrived.value = arrivedBytes(this.#plan, this.#missing);
    this.problem.value = null;
  }
}

/** Return whether the server does not know the upload, which has expired or never arrived. */
function isUnknown(caught: unknown): boolean {
  return caught instanceof ApiError && caught.code === "upload_not_found";
}

/** Return the form of a part: the fields first, since the server reads the body as a stream. */
function formOf(fields: Record<string, string | number | boolean>, bytes: ArrayBuffer): FormData {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (name !== "file") form.append(name, String(value));
  form.append("file", new Blob([bytes]), String(fields.file));
  return form;
}

/** Wait; end early when the browser has a network again, or the upload is paused. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    addEventListener("online", end);
    signal.addEventListener("abort", end);
  });
}
