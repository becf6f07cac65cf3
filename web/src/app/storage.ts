/**
 * The storage of the browser. It may be full, or blocked by the settings of the browser: then the page works without
 * it, and what it stores lasts until the page is left.
 */
export class PageStorage {
  readonly #area: () => Storage;
  readonly #substitute = new Map<string, string>();

  /** `area` returns the storage, or throws a SecurityError if the browser blocks it. */
  constructor(area: () => Storage) {
    this.#area = area;
  }

  get(key: string): string | null {
    try {
      return this.#area().getItem(key);
    } catch {
      return this.#substitute.get(key) ?? null;
    }
  }

  /** Store a text. Returns false if the browser has no room for it, or does not keep it. */
  set(key: string, value: string): boolean {
    try {
      this.#area().setItem(key, value);
      return true;
    } catch {
      this.#substitute.set(key, value);
      return false;
    }
  }

  remove(key: string): void {
    this.#substitute.delete(key);
    try {
      this.#area().removeItem(key);
    } catch {
      // Blocked: the substitute was all.
    }
  }

  keys(): string[] {
    try {
      return Object.keys(this.#area());
    } catch {
      return [...this.#substitute.keys()];
    }
  }
}

/** Shared by all tabs of the browser. */
export const browserStorage = new PageStorage(() => localStorage);
/** Of this tab, also after a reload. */
export const tabStorage = new PageStorage(() => sessionStorage);
