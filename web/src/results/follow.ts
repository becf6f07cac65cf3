/**
 * Follows an operation to its end: with the event stream, or by polling where a proxy holds the stream back (Contract
 * editor 8.1, 4.2, 7.1). Cuts of the network and restarts of the server are waited out.
 */
import { createParser, type EventSourceMessage } from "eventsource-parser";
import { api, data, type Schemas } from "../api/client.ts";
import { ApiError, asApiError, isRecord } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";
import { Backoff, passing, sleep } from "./backoff.ts";
import { type Failure, failureOf, hasStatus, isActive, isFailure, type QueryStatus } from "./problem.ts";

export type Job = Schemas["Job"];
/** `live`: events arrive; `polling`: the status is requested again and again; `lost`: the server does not answer. */
export type Connection = "live" | "polling" | "lost";

/** What the follower reports. `failure` is the body of an operation that has no result. */
export interface Follower {
  onStatus(status: QueryStatus, failure: Failure | null): void;
  onProgress(progress: number, rows: number | null, jobs: readonly Job[]): void;
  /** Lines from this number on; lines that were reported before may be repeated. */
  onLog(from: number, lines: readonly string[]): void;
  onConnection(connection: Connection): void;
  /** Whether the operation waits for its turn, by the latest status. */
  isWaiting(): boolean;
}

/** A stream without its first event after this time is held back: the server sends `status` at once. */
const FIRST_EVENT_MS = 3000;
/** The server sends a comment after 15 s without events, so a stream that is silent for longer is cut. */
const SILENCE_MS = 40_000;
/** A restart of the server ends one stream before its first event; a proxy may end all of them. */
const MAX_EMPTY_STREAMS = 2;
const HELD_BACK_FOR_MS = 10 * 60_000;
const POLL_WAIT_S = 2;
const POLL_PAUSE_MS = 1000;
/** The stream reports changes of state only, and the place in the queue changes without them. */
const QUEUE_PAUSE_MS = 2000;
const CALL_MS = 30_000;

/** Until when streams of this page are not tried, because one was held back. */
let heldBackUntil = 0;

/** How an attempt ended. `refused`: this user has too many open streams; `polled`: the operation still runs. */
type Outcome = "ended" | "cut" | "held back" | "refused" | "polled";

/**
 * Report the status, progress and log of an operation until it has ended. Rejects with ApiError if this user cannot
 * follow it (404, 403, an ended session), and with the reason of the signal when that is aborted. Of a result that
 * another user shares, only the status is reported.
 */
export async function follow(
  operationId: string,
  follower: Follower,
  signal: AbortSignal,
  { isShared = false } = {},
): Promise<void> {
  const backoff = new Backoff();
  const feed = new StatusFeed(operationId, follower, signal, isShared);
  let polls = isShared || Date.now() < heldBackUntil;
  while (true) {
    try {
      const outcome = polls ? await feed.poll() : await feed.stream();
      if (outcome === "ended") return;
      if (outcome === "held back") heldBackUntil = Date.now() + HELD_BACK_FOR_MS;
      polls ||= outcome === "held back" || outcome === "refused";
      if (feed.hasProgressed) backoff.reset();
      if (outcome === "cut") await backoff.pause(signal);
    } catch (problem) {
      const error = passing(problem, signal);
      follower.onConnection("lost");
      await backoff.pause(signal, error.retryAfterS);
    }
  }
}

class StatusFeed {
  /** Whether the latest attempt received anything. */
  hasProgressed = false;
  #lastEventId: string | null = null;
  #nextLogLine = 0;
  /** How many streams in a row have ended without an event. */
  #emptyStreams = 0;

  constructor(
    readonly operationId: string,
    readonly follower: Follower,
    readonly signal: AbortSignal,
    /** The result of another user: only its status may be read (Contract sharing 3.1). */
    readonly isShared: boolean,
  ) {}

  async stream(): Promise<Outcome> {
    this.hasProgressed = false;
    const attempt = new AbortController();
    const ends = AbortSignal.any([this.signal, attempt.signal]);
    const watch = new Watchdog(() => attempt.abort());
    const queue = this.#watchQueue(ends);
    let outcome: Outcome | null = null;
    try {
      watch.expectWithin(FIRST_EVENT_MS);
      const body = await this.#open(ends);
      if (body === null) return "refused";
      const parser = createParser({
        onEvent: (event) => {
          if (this.#take(event)) outcome = "ended";
          this.hasProgressed = true;
          this.follower.onConnection("live");
        },
      });
      for await (const text of body.pipeThrough(new TextDecoderStream())) {
        parser.feed(text);
        if (outcome !== null) return outcome;
        if (this.hasProgressed) watch.expectWithin(SILENCE_MS);
      }
      return this.#ended();
    } catch (problem) {
      return this.#failed(problem, attempt.signal);
    } finally {
      watch.stop();
      attempt.abort();
      await queue;
    }
  }

  #ended(): Outcome {
    this.#emptyStreams = this.hasProgressed ? 0 : this.#emptyStreams + 1;
    return this.#emptyStreams < MAX_EMPTY_STREAMS ? "cut" : "held back";
  }

  /** Throws the problem unless it is an event of another program, or `silence` was aborted because no event came. */
  #failed(problem: unknown, silence: AbortSignal): Outcome {
    if (problem instanceof SyntaxError) return "held back";
    if (this.signal.aborted || !silence.aborted) throw problem;
    return this.hasProgressed ? "cut" : "held back";
  }

  /** Return the stream, or null if this user has too many open streams. */
  async #open(signal: AbortSignal): Promise<ReadableStream<Uint8Array<ArrayBuffer>> | null> {
    const header = this.#lastEventId === null ? {} : { "Last-Event-ID": this.#lastEventId };
    const call = api.GET("/api/v1/editor/events/{operation_id}", {
      params: { path: { operation_id: this.operationId }, header, query: { log_from: this.#nextLogLine } },
      headers: { Accept: "text/event-stream" },
      parseAs: "stream",
      signal,
    });
    try {
      return await data(call);
    } catch (problem) {
      if (problem instanceof ApiError && problem.httpStatus === 429) return null;
      throw problem;
    }
  }

  /** Report an event. Returns whether it was the last one. */
  #take(event: EventSourceMessage): boolean {
    const body: unknown = JSON.parse(event.data);
    this.#lastEventId = event.id ?? this.#lastEventId;
    if (event.event === "denied" && isRecord(body)) throw new ApiError(403, `${body.code}`, `${body.message}`);
    if (event.event === "progress" && isProgress(body)) {
      this.follower.onProgress(body.progress, body.rows, body.jobs);
    } else if (event.event === "log" && isLog(body)) {
      this.#takeLog(body.from, body.next_from, body.logs);
    } else if (hasStatus(body)) {
      this.follower.onStatus(body.query_status, isFailure(body) ? body : null);
    }
    return event.event === "end";
  }

  #takeLog(from: number, nextFrom: number, text: string): void {
    this.#nextLogLine = nextFrom;
    if (nextFrom > from) this.follower.onLog(from, text.split("\n"));
  }

  /** Request the log and the status once. The status call is answered when the operation ends, or after two seconds. */
  async poll(): Promise<Outcome> {
    await this.#pollLog();
    const isOver = await this.#pollStatus(POLL_WAIT_S, this.signal);
    this.hasProgressed = true;
    this.follower.onConnection("polling");
    if (!isOver) return "polled";
    await this.#pollLog();
    return "ended";
  }

  async #pollLog(): Promise<void> {
    if (this.isShared) return;
    const from = this.#nextLogLine;
    const body = { operationId: this.operationId, from };
    const answer = await data(api.POST("/api/v1/editor/get_logs", { body, signal: within(this.signal, CALL_MS) }));
    this.follower.onProgress(answer.progress, null, answer.jobs);
    this.#takeLog(from, answer.next_from, answer.logs);
  }

  /** Report the status. Returns whether the operation has ended. */
  async #pollStatus(waitS: number, signal: AbortSignal): Promise<boolean> {
    const body = { operationId: this.operationId, wait: waitS };
    const call = api.POST("/api/v1/editor/check_status", { body, signal: within(signal, CALL_MS) });
    try {
      const { query_status: status } = await data(call);
      this.follower.onStatus(status, null);
      return !isActive(status.state);
    } catch (problem) {
      const failure = failureOf(problem);
      if (failure !== null) {
        this.follower.onStatus(failure.query_status, failure);
        return true;
      }
      if (asApiError(problem).code !== "too_many_streams") throw problem;
      await sleep(POLL_PAUSE_MS, signal);
      return await this.#pollStatus(0, signal);
    }
  }

  /** Report the place in the queue while the operation waits and its stream is open. */
  async #watchQueue(signal: AbortSignal): Promise<void> {
    try {
      while (!signal.aborted) {
        await sleep(QUEUE_PAUSE_MS, signal);
        if (this.follower.isWaiting()) await this.#pollStatus(0, signal);
      }
    } catch {
      // The stream reports whether the server can be reached.
    }
  }
}

/** Calls back when a stream is silent for longer than expected. */
class Watchdog {
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(private readonly onSilence: () => void) {}

  expectWithin(ms: number): void {
    this.stop();
    this.#timer = setTimeout(this.onSilence, ms);
  }

  stop(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
  }
}

function isProgress(body: unknown): body is { progress: number; rows: number; jobs: Job[] } {
  return (
    isRecord(body) && typeof body.progress === "number" && typeof body.rows === "number" && Array.isArray(body.jobs)
  );
}

function isLog(body: unknown): body is { from: number; next_from: number; logs: string } {
  return isRecord(body) && [body.from, body.next_from].every(Number.isInteger) && typeof body.logs === "string";
}
