/** A directory that is loaded in pages while it is scrolled. Of 100,000 entries, only some pages are held. */
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { api, data, type Schemas } from "../api/client.ts";
import { isAbort } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";
import { dateText } from "../ui/texts.ts";

export type Entry = Schemas["FlatFileEntry"];
export type SortKey = "name" | "type" | "mtime" | "size" | "user" | "group";

interface ListingQuery {
  path: string;
  sortby: SortKey;
  descending: boolean;
  /** A part of the name; upper and lower case differ. */
  filter: string;
}

export const PAGE_ENTRIES = 500;
/** Pages that are held; those that are far from the visible part are dropped first. */
const PAGES_HELD = 20;
/** The store reads the whole directory for each page in another order than its own, so pages are not loaded in parallel. */
const CALL_TIMEOUT_MS = 300_000;

export class Listing {
  /** The number of entries; null until the first page is here. */
  readonly total = signal<number | null>(null);
  readonly isTotalExact = signal(true);
  readonly problem = signal<unknown>(null);
  /** Changes when a page arrives. */
  readonly version = signal(0);

  readonly #pages = new Map<number, readonly Entry[]>();
  readonly #ended = new AbortController();
  #wanted: readonly [number, number] = [0, 0];
  #isLoading = false;

  constructor(readonly query: ListingQuery) {
    void this.#load();
  }

  /** Return the entry at a position; undefined if its page is not loaded. */
  entry(index: number): Entry | undefined {
    return this.#pages.get(Math.floor(index / PAGE_ENTRIES))?.[index % PAGE_ENTRIES];
  }

  /** Load the entries of the positions [start, end]. A newer range replaces one that waits. */
  ensure(start: number, end: number): void {
    this.#wanted = [Math.floor(start / PAGE_ENTRIES), Math.floor(end / PAGE_ENTRIES)];
    void this.#load();
  }

  /** Return the entries of the positions [start, end], loading the pages that are not here. Throws ApiError. */
  async entries(start: number, end: number): Promise<Entry[]> {
    const found: Entry[] = [];
    for (let page = Math.floor(start / PAGE_ENTRIES); page <= Math.floor(end / PAGE_ENTRIES); page++) {
      const entries = this.#pages.get(page) ?? (await this.#fetch(page));
      const first = page * PAGE_ENTRIES;
      found.push(...entries.slice(Math.max(0, start - first), Math.max(0, end + 1 - first)));
    }
    return found;
  }

  retry(): void {
    this.problem.value = null;
    void this.#load();
  }

  end(): void {
    this.#ended.abort();
  }

  async #load(): Promise<void> {
    if (this.#isLoading || this.problem.peek() !== null) return;
    this.#isLoading = true;
    try {
      for (let page = this.#next(); page !== null; page = this.#next()) await this.#fetch(page);
    } catch (caught) {
      if (!isAbort(caught) && !this.#ended.signal.aborted) this.problem.value = caught;
    } finally {
      this.#isLoading = false;
    }
  }

  #next(): number | null {
    if (this.#ended.signal.aborted) return null;
    const [first, last] = this.#wanted;
    for (let page = first; page <= last; page++) if (!this.#pages.has(page) && this.#exists(page)) return page;
    return null;
  }

  #exists(page: number): boolean {
    const total = this.total.peek();
    return page === 0 || total === null || page * PAGE_ENTRIES < total;
  }

  async #fetch(page: number): Promise<readonly Entry[]> {
    const signal = within(this.#ended.signal, CALL_TIMEOUT_MS);
    const query = { ...this.query, pagenum: page + 1, pagesize: PAGE_ENTRIES };
    const listed = await data(api.GET("/api/v1/storage/list", { params: { query }, signal }));
    this.#pages.set(page, listed.files);
    this.#drop();
    this.total.value = listed.page.total_count;
    this.isTotalExact.value = listed.page.total_is_exact;
    this.version.value += 1;
    return listed.files;
  }

  #drop(): void {
    const [first, last] = this.#wanted;
    const center = (first + last) / 2;
    const far = [...this.#pages.keys()].sort((a, b) => Math.abs(b - center) - Math.abs(a - center));
    for (const page of far.slice(0, Math.max(0, far.length - PAGES_HELD))) this.#pages.delete(page);
  }
}

/**
 * Return the listing of a directory; another query or round starts a new one. While it loads in the same order, the
 * previous listing stays. Calls end with the component.
 */
export function useListing(query: ListingQuery, round = 0): Listing {
  const key = JSON.stringify([query.path, query.sortby, query.descending, query.filter, round]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key holds the fields of the query
  const latest = useMemo(() => new Listing(query), [key]);
  useEffect(() => () => latest.end(), [latest]);
  const shown = useRef(latest);
  const isLoaded = latest.total.value !== null || latest.problem.value !== null;
  if (isLoaded || !isSameOrder(shown.current.query, latest.query)) shown.current = latest;
  return shown.current;
}

/** Return the time of the last change; empty if the store has none. */
export function modifiedText({ mtime }: Pick<Entry, "mtime">): string {
  return mtime ? dateText(mtime * 1000) : "";
}

function isSameOrder(one: ListingQuery, other: ListingQuery): boolean {
  return one.path === other.path && one.sortby === other.sortby && one.descending === other.descending;
}
