/** A cache of lookups by key: callers that want the same value share one request, and the memory is bounded. */

export interface LookupOptions<T> {
  /** Ends the wait of this caller. The request ends when no caller waits for it any more. */
  signal?: AbortSignal | undefined;
  /** Request the value again, on the server from the data source too. */
  refresh?: boolean | undefined;
  /** Called with the part that was received so far, for values that are received in parts. */
  onPart?: ((part: T) => void) | undefined;
}

export interface Lookup<T> {
  signal: AbortSignal;
  refresh: boolean;
  /** Pass on a part of the value. */
  publish: (part: T) => void;
}

interface Limits<T> {
  /** Sum of the weights that may be kept; the values that were used least recently go first. */
  maxWeight: number;
  weigh: (value: T) => number;
  maxAgeMs: number;
}

interface Kept<T> {
  value: T;
  weight: number;
  receivedAt: number;
}

interface Flight<T> {
  value: Promise<T>;
  controller: AbortController;
  waiting: number;
  part: T | undefined;
  listeners: Set<(part: T) => void>;
}

export class LookupCache<T> {
  /** In order of use, the least recent first. */
  readonly #kept = new Map<string, Kept<T>>();
  readonly #flights = new Map<string, Flight<T>>();
  #weight = 0;

  constructor(private readonly limits: Limits<T>) {}

  /** Return a value without a request, also if it is older than the maximum age. */
  peek(key: string): T | undefined {
    return this.#kept.get(key)?.value;
  }

  /** Return the kept value, or request it. Rejects with the error of the request; failures are not kept. */
  async load(key: string, request: (lookup: Lookup<T>) => Promise<T>, options: LookupOptions<T> = {}): Promise<T> {
    const { signal, refresh = false, onPart } = options;
    signal?.throwIfAborted();
    const kept = this.#kept.get(key);
    if (kept && !refresh && Date.now() - kept.receivedAt < this.limits.maxAgeMs) {
      this.#kept.delete(key);
      this.#kept.set(key, kept);
      return kept.value;
    }
    const shared = refresh ? undefined : this.#flights.get(key);
    return await this.#join(key, shared ?? this.#start(key, request, refresh), signal, onPart);
  }

  /** Drop the values whose key starts with the prefix; also those that are being requested. */
  forget(prefix: string): void {
    for (const key of [...this.#kept.keys()]) if (key.startsWith(prefix)) this.#drop(key);
    for (const key of [...this.#flights.keys()]) if (key.startsWith(prefix)) this.#flights.delete(key);
  }

  #start(key: string, request: (lookup: Lookup<T>) => Promise<T>, refresh: boolean): Flight<T> {
    const controller = new AbortController();
    const listeners = new Set<(part: T) => void>();
    const publish = (part: T) => {
      flight.part = part;
      for (const listener of listeners) listener(part);
    };
    // `request` starts in a later microtask, when `flight` is complete.
    const value = Promise.resolve().then(() => request({ signal: controller.signal, refresh, publish }));
    const flight: Flight<T> = { value, controller, waiting: 0, part: undefined, listeners };
    this.#flights.set(key, flight);
    value.then(
      (found) => this.#land(key, flight, found),
      () => this.#land(key, flight, undefined),
    );
    return flight;
  }

  #join(
    key: string,
    flight: Flight<T>,
    signal: AbortSignal | undefined,
    onPart: ((part: T) => void) | undefined,
  ): Promise<T> {
    flight.waiting += 1;
    if (onPart) {
      flight.listeners.add(onPart);
      if (flight.part !== undefined) onPart(flight.part);
    }
    return new Promise((resolve, reject) => {
      const abort = () => {
        if (onPart) flight.listeners.delete(onPart);
        flight.waiting -= 1;
        if (flight.waiting === 0) {
          if (this.#flights.get(key) === flight) this.#flights.delete(key);
          flight.controller.abort();
        }
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort, { once: true });
      flight.value.then(resolve, reject).finally(() => signal?.removeEventListener("abort", abort));
    });
  }

  /** Keep the result of a request, unless a newer request was started or the key was forgotten in the meantime. */
  #land(key: string, flight: Flight<T>, value: T | undefined): void {
    if (this.#flights.get(key) !== flight) return;
    this.#flights.delete(key);
    if (value === undefined) return;
    this.#drop(key);
    const weight = this.limits.weigh(value);
    this.#kept.set(key, { value, weight, receivedAt: Date.now() });
    this.#weight += weight;
    for (const oldest of this.#kept.keys()) {
      // The newest value stays even if it is larger than the limit: a view shows it, so dropping it frees nothing.
      if (this.#weight <= this.limits.maxWeight || oldest === key) break;
      this.#drop(oldest);
    }
  }

  #drop(key: string): void {
    this.#weight -= this.#kept.get(key)?.weight ?? 0;
    this.#kept.delete(key);
  }
}
