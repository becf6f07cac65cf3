/** The open tabs of the editor. They survive a reload, and are shared by the windows of one user. */
import { batch, effect, type ReadonlySignal, signal } from "@preact/signals";
import { session } from "../app/session.ts";
import { userName } from "../app/user.ts";
import type { Execution } from "../results/execution.ts";
import { notify } from "../ui/Toasts.tsx";
import { EMPTY, type StoredTab, type TabContent } from "./tabContent.ts";
import { TabStorage } from "./tabStorage.ts";

const SAVE_PAUSE_MS = 300;

export class EditorTab {
  readonly #content;
  /** The run that the tab shows; null before the first one. */
  readonly execution = signal<Execution | null>(null);

  constructor(
    readonly id: string,
    readonly order: number,
    content: TabContent,
  ) {
    this.#content = signal(content);
  }

  get content(): ReadonlySignal<TabContent> {
    return this.#content;
  }

  update(changes: Partial<TabContent>): void {
    this.take({ ...this.#content.peek(), ...changes });
    scheduleSave(this);
  }

  /** Take the content that another window has stored. */
  take(content: TabContent): void {
    this.#content.value = content;
  }
}

const openTabs = signal<readonly EditorTab[]>([]);
const selectedId = signal<string | null>(null);
const closedTabs = signal<readonly TabContent[]>([]);
const hasLoaded = signal(false);

export const tabs: ReadonlySignal<readonly EditorTab[]> = openTabs;
/** Whether the stored tabs are there; before, the list holds only those that were opened since. */
export const areLoaded: ReadonlySignal<boolean> = hasLoaded;
/** Tabs that were closed in this window, the latest last. */
export const closed: ReadonlySignal<readonly TabContent[]> = closedTabs;

let storage: TabStorage | null = null;
let loading: Promise<void> | null = null;
let stopWatching: (() => void) | null = null;
let isFullReported = false;
const unsaved = new Map<EditorTab, ReturnType<typeof setTimeout>>();

export function selectedTab(): EditorTab | null {
  return openTabs.value.find(({ id }) => id === selectedId.value) ?? openTabs.value[0] ?? null;
}

export function selectTab(tab: EditorTab): void {
  selectedId.value = tab.id;
  if (storage) storage.selected = tab.id;
}

/** Select the tab that is `step` places to the right. */
export function selectNext(step: number): void {
  const all = openTabs.value;
  const now = openTabs.value.findIndex(({ id }) => id === selectedTab()?.id);
  const next = all[(now + step + all.length) % all.length];
  if (next) selectTab(next);
}

/** Open a tab at the end and select it. Without a title it gets a number. */
export function addTab(content: Partial<TabContent>): EditorTab {
  const title = content.title || freeTitle();
  const order = Math.max(0, ...openTabs.value.map((tab) => tab.order)) + 1;
  const tab = new EditorTab(newId(), order, { ...EMPTY, ...content, title });
  batch(() => {
    openTabs.value = [...openTabs.value, tab];
    selectTab(tab);
  });
  scheduleSave(tab);
  return tab;
}

/** Close a tab. A statement that runs in it goes on. */
export function closeTab(tab: EditorTab): void {
  const index = openTabs.value.indexOf(tab);
  const content = tab.content.value;
  batch(() => {
    if (content.text.trim() !== "") closedTabs.value = [...closedTabs.value, content].slice(-20);
    drop(tab);
    if (openTabs.value.length === 0) addTab({ connector: content.connector, database: content.database });
    else if (selectedId.value === tab.id) selectTab(openTabs.value[Math.max(0, index - 1)] ?? tab);
  });
  storage?.remove(tab.id);
}

export function reopenTab(): void {
  const content = closedTabs.value.at(-1);
  if (!content) return;
  closedTabs.value = closedTabs.value.slice(0, -1);
  addTab(content);
}

/** Load the stored tabs of the user, once. Never rejects: without the name of the user nothing is stored. */
export function loadTabs(): Promise<void> {
  loading ??= load();
  return loading;
}

/** Store what has changed at once, for example when the page is left. */
export function saveNow(): void {
  for (const tab of [...unsaved.keys()]) save(tab);
}

async function load(): Promise<void> {
  const name = await userName().catch(() => null);
  if (!session.isLoggedIn.value) return;
  storage = name === null ? null : new TabStorage(name);
  const stored = storage?.load() ?? [];
  batch(() => {
    const restored = stored.map(({ id, order, content }) => new EditorTab(id, order, content));
    const opened = openTabs.value;
    openTabs.value = [...restored, ...opened];
    const latest = stored.toSorted((one, other) => other.savedAt - one.savedAt)[0]?.id;
    const shown = storage?.selected;
    const remembered = restored.find(({ id }) => id === shown)?.id ?? latest;
    if (opened.length === 0 && remembered !== undefined) selectedId.value = remembered;
    if (openTabs.value.length === 0) addTab({});
    hasLoaded.value = true;
    // Tabs that were opened before could not be stored: the name of the user was not known.
    for (const tab of opened) scheduleSave(tab);
  });
  stopWatching = storage?.watch(takeChange) ?? null;
}

/** Take a change of another window. The tab that this window shows stays, also if the other one has closed it. */
function takeChange(id: string, stored: StoredTab | null): void {
  const tab = openTabs.value.find((one) => one.id === id);
  if (stored === null) {
    if (tab && tab !== selectedTab()) drop(tab);
  } else if (!tab) {
    openTabs.value = [...openTabs.value, new EditorTab(id, stored.order, stored.content)];
  } else if (!unsaved.has(tab)) {
    tab.take(stored.content);
  }
}

function drop(tab: EditorTab): void {
  clearTimeout(unsaved.get(tab));
  unsaved.delete(tab);
  tab.execution.value?.dispose();
  openTabs.value = openTabs.value.filter((one) => one !== tab);
}

function scheduleSave(tab: EditorTab): void {
  // The last changes of a closed tab must not store it again.
  if (!openTabs.peek().includes(tab)) return;
  clearTimeout(unsaved.get(tab));
  unsaved.set(
    tab,
    setTimeout(() => save(tab), SAVE_PAUSE_MS),
  );
}

function save(tab: EditorTab): void {
  clearTimeout(unsaved.get(tab));
  unsaved.delete(tab);
  const isSaved = storage?.save({ id: tab.id, order: tab.order, savedAt: Date.now(), content: tab.content.peek() });
  if (isSaved === false && !isFullReported) {
    isFullReported = true;
    notify("The browser has no room left to store the tabs. Their latest changes are lost when the page is closed.");
  }
}

function freeTitle(): string {
  const used = new Set(openTabs.value.map((tab) => tab.content.value.title));
  let number = 1;
  while (used.has(`Query ${number}`)) number += 1;
  return `Query ${number}`;
}

function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

addEventListener("pagehide", saveNow);

// Texts of one user must not stay on the page for the next one.
effect(() => {
  if (session.isLoggedIn.value) return;
  saveNow();
  stopWatching?.();
  for (const tab of openTabs.peek()) tab.execution.peek()?.dispose();
  batch(() => {
    openTabs.value = [];
    closedTabs.value = [];
    selectedId.value = null;
    hasLoaded.value = false;
  });
  storage = null;
  loading = null;
  stopWatching = null;
});
