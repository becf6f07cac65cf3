/** Which entries of a listing are selected, by keyboard and mouse as in a file manager. */
import { computed, signal } from "@preact/signals";
import type { Entry, Listing } from "./listing.ts";

/** Changes of several entries take at most as many (Contract storage 7.8). */
export const MAX_SELECTED = 1000;

export class Selection {
  /** The position that keys move from; it is highlighted while the list has the focus. */
  readonly active = signal(0);
  readonly #entries = signal<ReadonlyMap<string, Entry>>(new Map());
  readonly entries = computed<readonly Entry[]>(() => [...this.#entries.value.values()]);
  /** Where a range of Shift begins. */
  #anchor = 0;

  constructor(private readonly listing: Listing) {}

  has(path: string): boolean {
    return this.#entries.value.has(path);
  }

  clear(): void {
    this.#entries.value = new Map();
  }

  only(index: number): void {
    this.#moveTo(index);
    const entry = this.listing.entry(index);
    this.#entries.value = new Map(entry ? [[entry.path, entry]] : []);
  }

  toggle(index: number): void {
    this.#moveTo(index);
    const entry = this.listing.entry(index);
    if (!entry) return;
    const changed = new Map(this.#entries.peek());
    if (!changed.delete(entry.path) && changed.size < MAX_SELECTED) changed.set(entry.path, entry);
    this.#entries.value = changed;
  }

  /** Select the entries from the anchor to a position; of a longer range, the first 1,000. Loads them. Throws ApiError. */
  async extend(index: number): Promise<void> {
    this.active.value = index;
    const [from, to] = [Math.min(this.#anchor, index), Math.max(this.#anchor, index)];
    const entries = await this.listing.entries(from, Math.min(to, from + MAX_SELECTED - 1));
    this.#entries.value = new Map(entries.map((entry) => [entry.path, entry]));
  }

  /** Select all entries, at most 1,000. Throws ApiError. */
  async all(): Promise<void> {
    this.#anchor = 0;
    const total = this.listing.total.peek() ?? 0;
    if (total === 0) return;
    const active = this.active.peek();
    await this.extend(total - 1);
    this.active.value = active;
  }

  #moveTo(index: number): void {
    this.active.value = index;
    this.#anchor = index;
  }
}
