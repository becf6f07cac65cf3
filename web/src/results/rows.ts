/**
 * The rows of a result, read from the server by pages around the part that is shown (Contract editor 6.1).
 *
 * Memory is bounded: pages far from the view are dropped and read again when they are shown again. The row at an index
 * is always the same, so nothing is lost by that.
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import { api, data, type Schemas } from "../api/client.ts";
import { ApiError, asApiError, isAbort } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";
import { Backoff, passing, sleep } from "./backoff.ts";

export type Column = Schemas["ColumnMeta"];
/** The cells of a row in the raw form of Contract editor 6.3: text, numbers, booleans, null, arrays and objects. */
export type Row = readonly unknown[];
export type ResultPage = Schemas["ResultPage"];
type Truncation = Pick<ResultPage, "truncated" | "truncated_by"> & { message: string };

/** Stands for a row that exceeds the limit of a response (`editor.batch_max_bytes`); only downloads contain it. */
export const TOO_LARGE: unknown[] = [];

/** Reads rows of one result from `startRow` on. Fewer rows than requested may come. Throws ApiError. */
type FetchPage = (startRow: number, rows: number, signal: AbortSignal) => Promise<ResultPage>;

/** Rows of the first request, when the number of columns is not known yet. */
export const FIRST_ROWS = 100;
/** Cells of a page. To parse and show 20,000 cells takes a few milliseconds. */
const PAGE_CELLS = 20_000;
const PAGE_ROWS = { min: 20, max: 500 };
/** Estimated memory of all pages: characters of texts, and 16 for each cell. */
const BUDGET = 24_000_000;
const CELL_COST = 16;
const CONCURRENT = 2;
/** While the view moves, a request starts at most so often. */
const THROTTLE_MS = 50;
/** Rows with long texts come in smaller pages, so that reading a page does not block the view. */
const PAGE_BYTES = 1024 * 1024;
/** Pause after an answer without rows that came at once; usually the server holds the call for 1 s. */
const EMPTY_PAUSE_MS = 250;

interface Page {
  rows: Row[];
  cost: number;
}

export class RowSource {
  readonly #columns = signal<readonly Column[] | null>(null);
  readonly #rowCount = signal<number | null>(null);
  readonly #knownRows = signal(0);
  readonly #version = signal(0);
  readonly #problem = signal<ApiError | null>(null);
  readonly #isRetrying = signal(false);
  readonly #truncation = signal<Truncation | null>(null);
  readonly #pages = new Map<number, Page>();
  readonly #loading = new Map<number, AbortController>();
  readonly #ended = new AbortController();
  readonly #backoff = new Backoff();
  #pageRows: number | null = null;
  #view = { start: 0, end: 0, isForward: true };
  #cost = 0;
  #pumpedAt = Number.NEGATIVE_INFINITY;
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    readonly operationId: string,
    /** The statement of a script whose rows are read; null for an operation of one statement. */
    readonly statementId: number | null = null,
    private readonly fetchPage: FetchPage = pageFetcher(operationId, statementId),
  ) {}

  /** The columns; null until they are known. */
  get columns(): ReadonlySignal<readonly Column[] | null> {
    return this.#columns;
  }

  /** The exact number of rows; null while rows may still arrive. */
  get rowCount(): ReadonlySignal<number | null> {
    return this.#rowCount;
  }

  /** The number of rows that can be read now. */
  get knownRows(): ReadonlySignal<number> {
    return this.#knownRows;
  }

  /** Grows whenever `row` may return something else. */
  get version(): ReadonlySignal<number> {
    return this.#version;
  }

  /** Why rows cannot be read, for example `expired`; null if they can. */
  get problem(): ReadonlySignal<ApiError | null> {
    return this.#problem;
  }

  /** Whether the server does not answer and the request is repeated. */
  get isRetrying(): ReadonlySignal<boolean> {
    return this.#isRetrying;
  }

  /** Which limit cut the stored result, and the advice of the server; null if it is complete. */
  get truncation(): ReadonlySignal<Truncation | null> {
    return this.#truncation;
  }

  /** The row at an index, or undefined while it is not loaded. */
  row(index: number): Row | undefined {
    const size = this.#pageRows;
    if (size === null) return undefined;
    return this.#pages.get(Math.floor(index / size))?.rows[index % size];
  }

  /** Load the rows [start, end) and their neighbors; requests for rows that are no longer near are aborted. */
  ensure(start: number, end: number): void {
    this.#view = { start, end, isForward: start >= this.#view.start };
    this.#abortStale();
    if (this.#timer !== null) return;
    const wait = this.#pumpedAt + THROTTLE_MS - performance.now();
    if (wait <= 0) this.#pump();
    else {
      this.#timer = setTimeout(() => {
        this.#timer = null;
        this.#pump();
      }, wait);
    }
  }

  /** Read the rows [start, end) without keeping them. Fewer rows come at the end of the result. Throws ApiError. */
  async read(start: number, end: number, signal: AbortSignal): Promise<Row[]> {
    const rows: Row[] = [];
    while (start + rows.length < end) {
      const first = start + rows.length;
      const page = await this.fetchPage(first, end - first, within(signal)).catch((problem: unknown) => {
        throw isTooLarge(problem) ? tooLarge(first) : problem;
      });
      rows.push(...page.data);
      if (page.data.length === 0 || start + rows.length >= (page.rows_total ?? Number.POSITIVE_INFINITY)) break;
    }
    return rows;
  }

  /** Take a page that came with another answer. */
  seed(page: ResultPage): void {
    this.#take(page);
  }

  /** Take the number of rows that the server has stored so far, or has in all. */
  report(rows: number, isComplete: boolean): void {
    if (rows > this.#knownRows.value) this.#knownRows.value = rows;
    if (isComplete) this.#rowCount.value = rows;
    this.#pump();
  }

  /** Request rows until the first ones are there. The server holds each request until it has a row, or for 1 s. */
  async awaitFirstRows(): Promise<void> {
    const { signal } = this.#ended;
    const hasEnded = () => signal.aborted || this.#columns.value !== null || this.#rowCount.value === 0;
    const skipped: unknown[][] = [];
    while (!hasEnded() && this.#problem.value === null) {
      const requestedAt = performance.now();
      try {
        const page = await this.fetchPage(skipped.length, FIRST_ROWS, within(signal));
        this.#noteAnswer();
        if (page.data.length > 0 || page.rows_total !== null) {
          this.#take({ ...page, start_row: 0, data: [...skipped, ...page.data] });
        } else if (performance.now() - requestedAt < EMPTY_PAUSE_MS) await sleep(EMPTY_PAUSE_MS, signal);
      } catch (problem) {
        if (isTooLarge(problem)) skipped.push(TOO_LARGE);
        else await this.#pauseAfter(problem).catch(() => undefined);
      }
    }
  }

  /** End all requests and forget the rows. */
  dispose(): void {
    this.#ended.abort();
    if (this.#timer !== null) clearTimeout(this.#timer);
    for (const controller of this.#loading.values()) controller.abort();
    this.#pages.clear();
  }

  /** Start the requests that the view needs and end those that it does not need any more. */
  #pump(): void {
    if (this.#pageRows === null || this.#problem.value !== null || this.#ended.signal.aborted) return;
    this.#pumpedAt = performance.now();
    this.#abortStale();
    for (const index of this.#wantedPages(this.#pageRows)) {
      if (this.#loading.size >= CONCURRENT) return;
      if (!this.#loading.has(index) && !this.#isFilled(index, this.#pageRows)) void this.#load(index, this.#pageRows);
    }
  }

  #abortStale(): void {
    if (this.#loading.size === 0 || this.#pageRows === null) return;
    const wanted = this.#wantedPages(this.#pageRows);
    for (const [index, controller] of this.#loading) {
      if (!wanted.includes(index)) controller.abort();
    }
  }

  /** The pages of the view, then the next one in the direction of the last move, and the one behind. */
  #wantedPages(size: number): number[] {
    const last = Math.ceil(this.#knownRows.value / size) - 1;
    const from = Math.max(0, Math.floor(this.#view.start / size));
    const to = Math.min(last, Math.floor(Math.max(this.#view.start, this.#view.end - 1) / size));
    const shown = Array.from({ length: Math.max(0, to - from + 1) }, (_, offset) => from + offset);
    const near = this.#view.isForward ? [to + 1, from - 1] : [from - 1, to + 1];
    // Rows with long texts fill the budget with the view alone.
    const ahead = this.#cost > BUDGET ? [] : near.filter((index) => index >= 0 && index <= last);
    return [...shown, ...ahead];
  }

  #isFilled(index: number, size: number): boolean {
    const stored = Math.min(size, this.#knownRows.value - index * size);
    return (this.#pages.get(index)?.rows.length ?? 0) >= stored;
  }

  async #load(index: number, size: number): Promise<void> {
    const controller = new AbortController();
    this.#loading.set(index, controller);
    const signal = AbortSignal.any([this.#ended.signal, controller.signal]);
    const loaded = this.#pages.get(index)?.rows.length ?? 0;
    const first = index * size + loaded;
    try {
      const page = await this.fetchPage(first, size - loaded, within(signal));
      this.#noteAnswer();
      if (page.data.length === 0) await sleep(EMPTY_PAUSE_MS, signal);
      else this.#take(page);
    } catch (problem) {
      if (isTooLarge(problem)) this.#keep(first, [TOO_LARGE], size);
      else if (!signal.aborted) await this.#pauseAfter(problem).catch(() => undefined);
    } finally {
      this.#loading.delete(index);
      this.#pump();
    }
  }

  #noteAnswer(): void {
    this.#isRetrying.value = false;
    this.#backoff.reset();
  }

  /** Wait if the request may be repeated; otherwise keep the problem. */
  async #pauseAfter(problem: unknown): Promise<void> {
    const { signal } = this.#ended;
    try {
      const error = passing(problem, signal);
      this.#isRetrying.value = true;
      await this.#backoff.pause(signal, error.retryAfterS);
    } catch (final) {
      if (!signal.aborted && !isAbort(final)) this.#problem.value = asApiError(final);
    }
  }

  #take(page: ResultPage): void {
    if (page.meta.length > 0 || page.rows_total !== null) this.#columns.value ??= page.meta;
    this.#pageRows ??= pageRowsFor(page.meta.length);
    const end = page.start_row + page.data.length;
    if (page.rows_total !== null) this.#rowCount.value = page.rows_total;
    this.#knownRows.value = page.rows_total ?? Math.max(this.#knownRows.value, end);
    if (page.truncated) {
      this.#truncation.value = { truncated: true, truncated_by: page.truncated_by, message: page.message ?? "" };
    }
    this.#keep(page.start_row, page.data, this.#pageRows);
  }

  #keep(start: number, rows: readonly Row[], size: number): void {
    this.#store(start, rows, size);
    this.#evict(size);
    this.#version.value += 1;
  }

  /** Put rows into their pages. Rows that would leave a gap in a page are dropped: pages fill from their start. */
  #store(start: number, rows: readonly Row[], size: number): void {
    rows.forEach((row, offset) => {
      const index = Math.floor((start + offset) / size);
      const page = this.#pages.get(index) ?? { rows: [], cost: 0 };
      if (page.rows.length !== (start + offset) % size) return;
      const cost = costOf(row);
      page.rows.push(row);
      page.cost += cost;
      this.#cost += cost;
      this.#pages.set(index, page);
    });
  }

  /** Drop the pages farthest from the view until the others are within the budget. Pages of the view stay. */
  #evict(size: number): void {
    if (this.#cost <= BUDGET) return;
    const middle = (this.#view.start + this.#view.end) / 2 / size;
    const isShown = (index: number) => index * size < this.#view.end && (index + 1) * size > this.#view.start;
    const farthest = [...this.#pages.keys()].sort((a, b) => Math.abs(b - middle) - Math.abs(a - middle));
    for (const index of farthest) {
      if (this.#cost <= BUDGET) return;
      if (isShown(index)) continue;
      this.#cost -= this.#pages.get(index)?.cost ?? 0;
      this.#pages.delete(index);
    }
  }
}

function pageFetcher(operationId: string, statementId: number | null): FetchPage {
  return async (startRow, rows, signal) => {
    const body = {
      operationId,
      statement_id: statementId,
      start_row: startRow,
      rows,
      max_bytes: PAGE_BYTES,
      big_numbers: "text",
    } as const;
    const answer = await data(api.POST("/api/v1/editor/fetch_result_data", { body, signal }));
    return answer.result;
  };
}

/** Whether the first row of a page alone exceeds the limit of the page. */
function isTooLarge(problem: unknown): boolean {
  return problem instanceof ApiError && problem.code === "row_too_large";
}

function tooLarge(row: number): ApiError {
  const message = `Row ${(row + 1).toLocaleString()} is too large to be shown. Download the result to get it.`;
  return new ApiError(0, "row_too_large", message);
}

function pageRowsFor(columns: number): number {
  return Math.max(PAGE_ROWS.min, Math.min(PAGE_ROWS.max, Math.floor(PAGE_CELLS / Math.max(columns, 1))));
}

/** Estimate the memory of a row, in characters. */
function costOf(row: Row): number {
  let cost = CELL_COST * row.length;
  for (const cell of row) {
    if (typeof cell === "string") cost += cell.length;
    else if (typeof cell === "object" && cell !== null) cost += JSON.stringify(cell).length * 2;
  }
  return cost;
}
