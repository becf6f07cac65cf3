/**
 * A statement that this page has submitted or has found again: its state, progress, log and rows as signals.
 *
 * The statement runs on the server. It goes on when the page is closed, and `attachExecution` follows it again.
 */
import { batch, computed, effect, type ReadonlySignal, signal } from "@preact/signals";
import { api, CALL_TIMEOUT_MS, data, type Schemas } from "../api/client.ts";
import { asApiError } from "../api/errors.ts";
import { newKey } from "../api/keys.ts";
import { within } from "../api/timeouts.ts";
import { Backoff, passing } from "./backoff.ts";
import { type Connection, type Follower, follow, type Job } from "./follow.ts";
import { EMPTY_LOG, type Log, withLines } from "./log.ts";
import {
  type Failure,
  failureOf,
  isActive,
  problemOf,
  problemOfCall,
  type QueryStatus,
  type StatementProblem,
} from "./problem.ts";
import { type Column, FIRST_ROWS, type ResultPage, RowSource } from "./rows.ts";

export type { Column } from "./rows.ts";

type ScriptPart = Schemas["ScriptStatement"];
/** `submitting`: not acknowledged yet. `unknown`: the page cannot follow the statement (see `error`). */
type ExecutionState = "submitting" | QueryStatus["state"] | "unknown";

export interface Submission {
  /** The connector: its id, its key or its dialect (Contract editor 1.7). */
  connector: string;
  statement: string;
  database?: string | undefined;
  /** A list for `?`, an object for `:name`. */
  parameters?: unknown[] | Record<string, unknown> | undefined;
  /** Run all statements of the text in order, as one operation; otherwise its first statement. */
  runAll?: boolean | undefined;
  sessionId?: number | undefined;
  /** The most rows to keep. */
  limit?: number | undefined;
  timeoutS?: number | undefined;
  /** Accept the stored rows of an equal query that are at most so old. */
  maxAgeS?: number | undefined;
  /** The id of the saved query whose text this is; its runs are listed there. */
  document?: string | undefined;
  /** Runs once however often it is submitted. By default a new key. */
  key?: string | undefined;
  /** Keep the operation out of the history: it was not written by the user. */
  isUnlisted?: boolean | undefined;
}

/** How long execute waits for the end of the statement, so that short ones need one call. */
const SUBMIT_WAIT_S = 0.1;
const TICK_MS = 100;
const NOT_CONFIRMED =
  "The server has not confirmed that it received the statement. Look for it in the history before you run it again.";

/** Submit a statement. Cuts of the network are waited out; the statement is never run twice. */
export function startExecution(submission: Submission): Execution {
  const execution = new Execution();
  void execution.submit(submission);
  return execution;
}

/** Follow an operation that was submitted before, by this page or another one, or that another user shares. */
export function attachExecution(operationId: string, { isShared = false } = {}): Execution {
  const execution = new Execution();
  void execution.attach(operationId, isShared);
  return execution;
}

export class Execution {
  readonly #operationId = signal<string | null>(null);
  readonly #status = signal<QueryStatus | null>(null);
  readonly #error = signal<StatementProblem | null>(null);
  readonly #warning = signal<string | null>(null);
  readonly #progress = signal(0);
  readonly #jobs = signal<readonly Job[]>([]);
  readonly #log = signal<Log>(EMPTY_LOG);
  readonly #connection = signal<Connection>("live");
  readonly #elapsedMs = signal(0);
  readonly #isCanceling = signal(false);
  readonly #isLost = signal(false);
  readonly #rows = signal<RowSource | null>(null);
  readonly #chosenPart = signal<number | null>(null);
  readonly #sources = new Map<number | null, RowSource>();
  readonly #ended = new AbortController();
  readonly #cancelWaits = new AbortController();
  #receivedAt = performance.now();

  readonly state: ReadonlySignal<ExecutionState> = computed(() =>
    this.#isLost.value ? "unknown" : (this.#status.value?.state ?? "submitting"),
  );
  readonly isActive: ReadonlySignal<boolean> = computed(() => {
    const state = this.state.value;
    return state === "submitting" || state === "waiting" || state === "running";
  });
  /** 1 is the next statement of the connector; null while it does not wait for its turn. */
  readonly queuePosition: ReadonlySignal<number | null> = computed(() => this.#status.value?.queue_position ?? null);
  /** The begun statements of a script that runs as a whole; empty for others. */
  readonly parts: ReadonlySignal<readonly ScriptPart[]> = computed(() => this.#status.value?.statements ?? []);
  /** The statement whose rows are shown: the chosen one, or the latest one with a result set. */
  readonly shownPart: ReadonlySignal<number | null> = computed(() => {
    const withRows = this.parts.value.filter((part) => part.has_result_set).at(-1);
    return this.#chosenPart.value ?? withRows?.statement_id ?? null;
  });
  readonly columns: ReadonlySignal<readonly Column[] | null> = computed(() => this.#rows.value?.columns.value ?? null);

  constructor() {
    const stop = effect(() => {
      if (!this.isActive.value) return;
      const timer = setInterval(() => this.#tick(), TICK_MS);
      return () => clearInterval(timer);
    });
    this.#ended.signal.addEventListener("abort", stop);
  }

  /** The id of the operation; null until the server has acknowledged it. */
  get operationId(): ReadonlySignal<string | null> {
    return this.#operationId;
  }

  get status(): ReadonlySignal<QueryStatus | null> {
    return this.#status;
  }

  /** The rows of the shown statement; null while there is none with a result set. */
  get rows(): ReadonlySignal<RowSource | null> {
    return this.#rows;
  }

  /** Why the statement has no result; null if it has not failed. */
  get error(): ReadonlySignal<StatementProblem | null> {
    return this.#error;
  }

  /** That only one statement of a script was run, for example. */
  get warning(): ReadonlySignal<string | null> {
    return this.#warning;
  }

  /** From 0 to 100. */
  get progress(): ReadonlySignal<number> {
    return this.#progress;
  }

  get jobs(): ReadonlySignal<readonly Job[]> {
    return this.#jobs;
  }

  get log(): ReadonlySignal<Log> {
    return this.#log;
  }

  get connection(): ReadonlySignal<Connection> {
    return this.#connection;
  }

  /** Milliseconds since the statement was sent to the data source, or how long it took. */
  get elapsedMs(): ReadonlySignal<number> {
    return this.#elapsedMs;
  }

  /** Whether a cancel was requested and not confirmed yet. */
  get isCanceling(): ReadonlySignal<boolean> {
    return this.#isCanceling;
  }

  /** Show the rows of this statement of the script. */
  choosePart(statementId: number): void {
    this.#chosenPart.value = statementId;
    this.#showRows();
  }

  /** Stop the statement on the server. Throws ApiError. */
  async cancel(): Promise<void> {
    if (!this.isActive.value) return;
    this.#isCanceling.value = true;
    // Between two attempts to submit nothing is under way that could be canceled.
    this.#cancelWaits.abort();
    const operationId = this.#operationId.value;
    if (operationId === null) return;
    try {
      // Not the signal of this page: a cancel goes on when the view is closed.
      const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
      const answer = await data(api.POST("/api/v1/editor/cancel_statement", { body: { operationId }, signal }));
      // The failure body, with message and code, comes with the events.
      if (isActive(answer.query_status.state)) this.#takeStatus(answer.query_status, null);
    } catch (problem) {
      this.#isCanceling.value = false;
      throw problem;
    }
  }

  /** Wait until the statement has ended, in whatever way. Rejects with the reason of the signal if that is aborted. */
  async ended(signal: AbortSignal = this.#ended.signal): Promise<void> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort);
    const stop = this.isActive.subscribe((isActive) => {
      if (!isActive) resolve();
    });
    try {
      await promise;
    } finally {
      stop();
      signal.removeEventListener("abort", abort);
    }
  }

  /** End all requests of this page. The statement goes on. */
  dispose(): void {
    this.#ended.abort();
    for (const source of this.#sources.values()) source.dispose();
  }

  async submit(submission: Submission): Promise<void> {
    const { signal } = this.#ended;
    try {
      await this.#submitOnce(submission);
      const operationId = this.#operationId.value;
      if (operationId === null) return;
      if (this.#isCanceling.value) {
        this.cancel().catch((problem: unknown) => {
          this.#warning.value = asApiError(problem).message;
        });
      }
      await this.#follow(operationId);
    } catch (problem) {
      if (!signal.aborted) this.#fail(problemOfCall(problem));
    }
  }

  async attach(operationId: string, isShared: boolean): Promise<void> {
    this.#operationId.value = operationId;
    try {
      await this.#follow(operationId, isShared);
    } catch (problem) {
      if (!this.#ended.signal.aborted) this.#fail(problemOfCall(problem));
    }
  }

  /** Repeat the submission, with the same key, until the server answers. */
  async #submitOnce(submission: Submission): Promise<void> {
    const backoff = new Backoff();
    const key = submission.key ?? newKey();
    let wait = SUBMIT_WAIT_S;
    while (true) {
      try {
        this.#acknowledge(await this.#call(submission, key, wait));
        return;
      } catch (problem) {
        const failure = failureOf(problem);
        if (failure !== null) {
          this.#acknowledge(failure);
          return;
        }
        if (wait > 0 && asApiError(problem).code === "too_many_streams") {
          wait = 0;
          continue;
        }
        const error = passing(problem, this.#ended.signal);
        this.#connection.value = "lost";
        const stops = AbortSignal.any([this.#ended.signal, this.#cancelWaits.signal]);
        await backoff.pause(stops, error.retryAfterS).catch(() => undefined);
        if (!this.#cancelWaits.signal.aborted) continue;
        this.#fail({ ...problemOfCall(error), code: "not_confirmed", message: NOT_CONFIRMED });
        return;
      }
    }
  }

  async #call(submission: Submission, key: string, wait: number) {
    const { statement, connector, database, parameters, sessionId, limit, timeoutS, maxAgeS, document } = submission;
    const body = {
      statement,
      database: database ?? null,
      parameters: parameters ?? null,
      run_all: submission.runAll ?? false,
      session_id: sessionId ?? null,
      limit: limit ?? null,
      timeout: timeoutS ?? null,
      max_age_s: maxAgeS ?? null,
      document: document ?? null,
      notebook: submission.isUnlisted ? { skipHistorify: true } : null,
      wait,
      rows: FIRST_ROWS,
      big_numbers: "text",
    } as const;
    const params = { path: { dialect: connector }, header: { "Idempotency-Key": key } };
    const call = api.POST("/api/v1/editor/execute/{dialect}", { params, body, signal: within(this.#ended.signal) });
    return await data(call);
  }

  #acknowledge(answer: Schemas["ExecuteResponse"] | Failure): void {
    batch(() => {
      this.#operationId.value = answer.history_uuid;
      this.#connection.value = "live";
      this.#warning.value = answer.warning ?? null;
      this.#takeStatus(
        answer.query_status,
        "code" in answer ? answer : null,
        "result" in answer ? (answer.result ?? null) : null,
      );
    });
  }

  async #follow(operationId: string, isShared = false): Promise<void> {
    const follower: Follower = {
      onStatus: (status, failure) => batch(() => this.#takeStatus(status, failure)),
      onProgress: (progress, rows, jobs) => {
        batch(() => {
          this.#progress.value = progress;
          this.#jobs.value = jobs;
          if (rows !== null && rows > 0) this.#sources.get(null)?.report(rows, false);
        });
      },
      onLog: (from, lines) => {
        this.#log.value = withLines(this.#log.value, from, lines);
      },
      onConnection: (connection) => {
        this.#connection.value = connection;
      },
      isWaiting: () => this.#status.value?.state === "waiting",
    };
    await follow(operationId, follower, this.#ended.signal, { isShared });
  }

  #takeStatus(status: QueryStatus, failure: Failure | null, firstRows: ResultPage | null = null): void {
    // A late answer must not change a final state back.
    if (this.#status.value !== null && !isActive(this.#status.value.state) && isActive(status.state)) return;
    this.#receivedAt = performance.now();
    this.#status.value = status;
    this.#elapsedMs.value = status.elapsed_ms;
    if (failure !== null) this.#error.value = problemOf(failure);
    if (!isActive(status.state)) {
      this.#isCanceling.value = false;
      if (failure === null) this.#progress.value = 100;
    }
    this.#showRows(firstRows);
    this.#reportRows();
  }

  /** Hand the numbers of rows in the latest status to the sources that have been read. */
  #reportRows(): void {
    const status = this.#status.value;
    if (status === null) return;
    this.#sources.get(null)?.report(status.rows, status.state === "available" || status.state === "success");
    for (const part of this.parts.value) {
      this.#sources.get(part.statement_id)?.report(part.rows, part.state === "available" || part.state === "success");
    }
  }

  #fail(problem: StatementProblem): void {
    batch(() => {
      this.#isCanceling.value = false;
      this.#error.value = problem;
      this.#isLost.value = true;
    });
  }

  /** Show the rows of the shown statement, and request the first ones unless they came with the status. */
  #showRows(firstRows: ResultPage | null = null): void {
    const operationId = this.#operationId.value;
    const status = this.#status.value;
    const part = this.shownPart.value;
    const shown = part === null ? status : this.parts.value.find((one) => one.statement_id === part);
    if (operationId === null || !shown?.has_result_set) this.#rows.value = null;
    else if (part !== null || status?.statements === undefined) {
      this.#rows.value = this.#source(operationId, part, shown.state, firstRows);
    }
  }

  #source(
    operationId: string,
    part: number | null,
    state: QueryStatus["state"],
    firstRows: ResultPage | null,
  ): RowSource | null {
    const known = this.#sources.get(part);
    // While the statement waits for its turn there are no rows to request.
    if (known !== undefined || state === "waiting") return known ?? null;
    const source = new RowSource(operationId, part);
    this.#sources.set(part, source);
    if (firstRows !== null) source.seed(firstRows);
    else void source.awaitFirstRows();
    return source;
  }

  #tick(): void {
    const status = this.#status.value;
    if (status === null || status.started === null || status.ended !== null) return;
    this.#elapsedMs.value = status.elapsed_ms + (performance.now() - this.#receivedAt);
  }
}
