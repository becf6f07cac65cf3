/** The tabs of one user in the storage of the browser (Contract console 4): one entry for each, so windows can share. */
import { browserStorage, tabStorage } from "../app/storage.ts";
import { parsed, type StoredTab, serialized } from "./tabContent.ts";

const PREFIX = "queryserver.tab";

export class TabStorage {
  readonly #prefix: string;

  constructor(userName: string) {
    this.#prefix = `${PREFIX}.${encodeURIComponent(userName)}.`;
  }

  load(): StoredTab[] {
    const tabs: StoredTab[] = [];
    for (const key of browserStorage.keys()) {
      const id = this.#idOf(key);
      const tab = id === null ? null : parsed(id, browserStorage.get(key) ?? "");
      if (tab) tabs.push(tab);
    }
    return tabs.sort((one, other) => one.order - other.order || one.id.localeCompare(other.id));
  }

  /** Store a tab. Returns false if the browser has no room for it. */
  save(tab: StoredTab): boolean {
    return browserStorage.set(this.#prefix + tab.id, serialized(tab));
  }

  remove(id: string): void {
    browserStorage.remove(this.#prefix + id);
  }

  /** The tab that this window showed last, also after a reload. */
  get selected(): string | null {
    return tabStorage.get(this.#prefix);
  }

  set selected(id: string) {
    tabStorage.set(this.#prefix, id);
  }

  /** Report changes of other windows until the returned function is called: a tab, or the id of one that was closed. */
  watch(onChange: (id: string, tab: StoredTab | null) => void): () => void {
    const listener = (event: StorageEvent) => {
      const id = event.storageArea === localStorage ? this.#idOf(event.key) : null;
      if (id !== null) onChange(id, event.newValue === null ? null : parsed(id, event.newValue));
    };
    addEventListener("storage", listener);
    return () => removeEventListener("storage", listener);
  }

  #idOf(key: string | null): string | null {
    return key?.startsWith(this.#prefix) ? key.slice(this.#prefix.length) : null;
  }
}
