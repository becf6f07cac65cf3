/** The objects of the tree, and the lines that follow from the open branches. */
import { asApiError } from "../api/errors.ts";
import type { Connector } from "../app/config.ts";
import type { ColumnSummary, TableSummary } from "./store.ts";

export type NodeKind = "connector" | "database" | "table" | "view" | "column" | "key" | "partition";

export interface TreeNode {
  kind: NodeKind;
  /** The name in the data source; of a connector its id. */
  name: string;
  label: string;
  /** The type of a column; of a connector its dialect. */
  detail: string;
  comment: string;
}

export interface Content {
  nodes: readonly TreeNode[];
  isLoading: boolean;
  problem: unknown;
  /** What the last line says, for example that the list is not complete. */
  note: string;
}

/** The opened content of a connector, database or table. The root branch contains the connectors. */
export interface Branch {
  /** Names from the connector on; empty for the root. */
  path: readonly string[];
  content: Content;
  /** Branches of the opened nodes, by name. */
  open: Map<string, Branch>;
  controller: AbortController;
  /** Fulfilled when the latest load has ended, in whatever way. */
  loading: Promise<void>;
}

/** A line of the tree: an object, or a note where a branch has none. */
export interface TreeRow {
  branch: Branch;
  node: TreeNode | null;
  note: string;
  problem: unknown;
  level: number;
  position: number;
  size: number;
  /** Null if the row cannot be opened. */
  isOpen: boolean | null;
}

const EMPTY = ["No connectors", "No databases", "No tables", "No columns"] as const;

export function emptyBranch(path: readonly string[]): Branch {
  const content = { nodes: [], isLoading: false, problem: null, note: "" };
  return { path, content, open: new Map(), controller: new AbortController(), loading: Promise.resolve() };
}

/**
 * Return the lines of a branch and of the open branches below it.
 *
 * With a filter, only the objects whose label contains all words, and those above them. Words are in lower case.
 */
export function rowsOf(root: Branch, words: readonly string[]): readonly TreeRow[] {
  const rows: TreeRow[] = [];
  addRows(rows, root, words);
  return rows;
}

function addRows(rows: TreeRow[], branch: Branch, words: readonly string[]): void {
  const level = branch.path.length + 1;
  const { nodes, problem } = branch.content;
  const shown: TreeRow[] = [];
  for (const node of nodes) {
    const below = branch.open.get(node.name);
    const row: TreeRow = {
      branch,
      node,
      note: "",
      problem: null,
      level,
      position: shown.length + 1,
      size: 0,
      isOpen: level > 3 ? null : below !== undefined,
    };
    const at = rows.push(row);
    if (below) addRows(rows, below, words);
    if (rows.length === at && words.length > 0 && !matches(node, words)) rows.pop();
    else shown.push(row);
  }
  const lines = words.length > 0 ? [] : notesOf(branch.content, EMPTY[branch.path.length] ?? "");
  for (const text of lines) {
    const row = { branch, node: null, note: text, problem, level, position: shown.length + 1, size: 0, isOpen: null };
    rows.push(row);
    shown.push(row);
  }
  for (const row of shown) row.size = shown.length;
}

function notesOf({ nodes, isLoading, problem, note }: Content, empty: string): string[] {
  if (problem) return [asApiError(problem).message];
  if (nodes.length === 0) return [isLoading ? "Loading…" : empty];
  if (isLoading) return ["Loading…"];
  return note ? [note] : [];
}

function matches({ label }: TreeNode, words: readonly string[]): boolean {
  const text = label.toLowerCase();
  return words.every((word) => text.includes(word));
}

export function connectorNode({ id, displayName, dialect }: Connector): TreeNode {
  const detail = displayName.toLowerCase() === dialect ? "" : dialect;
  return { kind: "connector", name: id, label: displayName, detail, comment: "" };
}

export function databaseNode(name: string): TreeNode {
  // Phoenix has a schema without a name.
  return { kind: "database", name, label: name || "(no schema)", detail: "", comment: "" };
}

export function tableNode({ name, type, comment }: TableSummary): TreeNode {
  return { kind: type === "Table" ? "table" : "view", name, label: name, detail: "", comment };
}

export function columnNode({ name, type, comment, primary_key, partition_key }: ColumnSummary): TreeNode {
  const kind = primary_key ? "key" : partition_key ? "partition" : "column";
  return { kind, name, label: name, detail: type, comment };
}
