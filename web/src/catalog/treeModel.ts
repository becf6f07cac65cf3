/** The state of the tree of connectors, databases, tables and columns: what is open, and what is loaded. */
import { computed, effect, signal } from "@preact/signals";
import { isAbort } from "../api/errors.ts";
import type { Connector } from "../app/config.ts";
import * as store from "./store.ts";
import {
  type Branch,
  type Content,
  columnNode,
  connectorNode,
  databaseNode,
  emptyBranch,
  rowsOf,
  type TreeNode,
  type TreeRow,
  tableNode,
} from "./treeRows.ts";

type Loaded = Pick<Content, "nodes" | "note">;

/** These databases are opened with their connector, because most queries need them. */
const USUAL_DATABASES: readonly string[] = ["default", "main", "public"];

export class TreeModel {
  /** Words that labels must contain, in lower case. */
  readonly filter = signal<readonly string[]>([]);
  readonly rows = computed<readonly TreeRow[]>(() => {
    this.#changes.value;
    return rowsOf(this.#root, this.filter.value);
  });
  readonly #changes = signal(0);
  readonly #root = emptyBranch([]);
  readonly #stopWatching: () => void;

  constructor(connectors: readonly Connector[]) {
    this.#root.content = { ...this.#root.content, nodes: connectors.map(connectorNode) };
    let seen = store.revision.peek();
    this.#stopWatching = effect(() => {
      if (store.revision.value === seen) return;
      seen = store.revision.value;
      for (const branch of this.#root.open.values()) void this.#reload(branch);
    });
  }

  /** Show the content of an object below its row, and load it. A connector is opened with its usual database. */
  async open(parent: Branch, name: string): Promise<void> {
    const opened = parent.open.get(name);
    if (opened) {
      await opened.loading;
      return;
    }
    const branch = emptyBranch([...parent.path, name]);
    parent.open.set(name, branch);
    await this.#load(branch, false);
    if (parent !== this.#root || parent.open.get(name) !== branch) return;
    const names = branch.content.nodes.map((node) => node.name);
    const usual = names.length === 1 ? names[0] : USUAL_DATABASES.find((one) => names.includes(one));
    if (usual !== undefined) await this.open(branch, usual);
  }

  /** Hide the content of an object, and end its requests. */
  close(parent: Branch, name: string): void {
    const branch = parent.open.get(name);
    if (!branch) return;
    abort(branch);
    parent.open.delete(name);
    this.#notify();
  }

  async openConnector(id: string): Promise<void> {
    if (this.#root.content.nodes.some((node) => node.name === id)) await this.open(this.#root, id);
  }

  /** Open the branches along a path. Returns the row of its last object, or null if it is not in the tree. */
  async reveal(path: readonly string[]): Promise<TreeRow | null> {
    let branch = this.#root;
    for (const name of path.slice(0, -1)) {
      await this.open(branch, name);
      const below = branch.open.get(name);
      if (!below) return null;
      branch = below;
    }
    return this.rows.value.find((row) => row.branch === branch && row.node?.name === path.at(-1)) ?? null;
  }

  /** Load a branch again, from the data source. */
  async refresh(branch: Branch): Promise<void> {
    await this.#load(branch, true);
  }

  /** End all requests. */
  dispose(): void {
    this.#stopWatching();
    abort(this.#root);
  }

  async #reload(branch: Branch): Promise<void> {
    await Promise.all([this.#load(branch, false), ...[...branch.open.values()].map((below) => this.#reload(below))]);
  }

  #load(branch: Branch, refresh: boolean): Promise<void> {
    branch.loading = this.#request(branch, refresh);
    return branch.loading;
  }

  async #request(branch: Branch, refresh: boolean): Promise<void> {
    branch.controller.abort();
    const controller = new AbortController();
    branch.controller = controller;
    const show = (content: Partial<Content>) => {
      if (controller.signal.aborted) return;
      branch.content = { ...branch.content, ...content };
      this.#notify();
    };
    show({ isLoading: true, problem: null });
    try {
      const options = { signal: controller.signal, refresh };
      const found = await contentOf(branch.path, options, (nodes) => show({ nodes }));
      show({ ...found, isLoading: false });
    } catch (problem) {
      if (!isAbort(problem)) show({ isLoading: false, problem });
    }
  }

  #notify(): void {
    this.#changes.value = this.#changes.peek() + 1;
  }
}

async function contentOf(
  [connector, database, table]: readonly string[],
  options: { signal: AbortSignal; refresh: boolean },
  onPart: (nodes: readonly TreeNode[]) => void,
): Promise<Loaded> {
  if (connector === undefined) throw new Error("The root has no content to load.");
  if (database === undefined) {
    return { nodes: (await store.databases(connector, options)).map(databaseNode), note: "" };
  }
  if (table === undefined) {
    const onTables = (part: store.TableList) => onPart(part.tables.map(tableNode));
    const list = await store.tables(connector, database, { ...options, onPart: onTables });
    const note = list.isComplete ? "" : `More than ${store.MAX_TABLES.toLocaleString()} tables: search for the others`;
    return { nodes: list.tables.map(tableNode), note };
  }
  const { extended_columns } = await store.columns(connector, database, table, options);
  return { nodes: extended_columns.map(columnNode), note: "" };
}

function abort(branch: Branch): void {
  branch.controller.abort();
  for (const below of branch.open.values()) abort(below);
}
