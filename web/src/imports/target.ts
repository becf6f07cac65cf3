/** The table that an import creates, and what is sent to create it (Contract importer 13). */
import type { Schemas } from "../api/client.ts";
import type { Connector } from "../app/config.ts";
import { type Edits, importColumns } from "./columns.ts";
import { type PreviewColumn, type Reading, readingQuery, type Source } from "./reading.ts";

export type IfExists = "error" | "append" | "replace";
/** `few` is the server's default: a tenth of the rows up to 10, or one in a hundred up to 100. */
type BadRows = "few" | "none" | "all";

export interface Target {
  /** The id of the connector. */
  connector: string;
  /** An empty text is the connector's default database. */
  database: string;
  table: string;
  ifExists: IfExists;
  badRows: BadRows;
}

export const IF_EXISTS: ReadonlyArray<{ value: IfExists; label: string; hint: string; action: string }> = [
  {
    value: "error",
    label: "Create a new table",
    hint: "If a table with this name exists, nothing is imported.",
    action: "Create the table",
  },
  {
    value: "append",
    label: "Add the rows to the table",
    hint: "Columns are matched by name. If there is no such table, it is created.",
    action: "Add the rows",
  },
  {
    value: "replace",
    label: "Replace the table",
    hint: "The old table, with its grants, keys and indexes, is deleted once all rows are loaded.",
    action: "Replace the table",
  },
];

export const BAD_ROWS: ReadonlyArray<{ value: BadRows; label: string }> = [
  { value: "few", label: "Skip up to 100, then stop" },
  { value: "none", label: "Stop at the first one" },
  { value: "all", label: "Skip all of them" },
];

const MAX_BAD_ROWS: Readonly<Record<BadRows, number | null>> = { few: null, none: 0, all: -1 };
/** The dialects in which tables can be created from files. */
const DIALECTS = new Set(["postgresql", "mysql", "sqlite", "duckdb", "hive", "sparksql", "trino", "phoenix"]);
const MAX_TABLE_NAME = 60;

export function canCreateTables({ dialect }: Pick<Connector, "dialect">): boolean {
  return DIALECTS.has(dialect);
}

/** Return a name for the table of a file: `Sales 2024.final.xlsx` becomes `sales_2024_final`. */
export function tableNameOf(fileName: string): string {
  const stem = fileName.replace(/\.[^.]{1,8}$/, "");
  const name = stem
    .normalize("NFC")
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, "_")
    .replace(/^_+|_+$/g, "");
  if (name === "") return "imported";
  return (/^\p{N}/u.test(name) ? `t_${name}` : name).slice(0, MAX_TABLE_NAME);
}

export function createTableBody(
  { source, reading, hasHeader }: { source: Source; reading: Reading; hasHeader: boolean },
  columns: readonly PreviewColumn[],
  edits: Edits,
  target: Target,
): Schemas["CreateTableRequest"] {
  const body: Schemas["CreateTableRequest"] = {
    ...readingQuery(source, { ...reading, hasHeader }),
    connector: target.connector,
    table: target.table.trim(),
    if_exists: target.ifExists,
    columns: importColumns(columns, edits),
  };
  if (target.database !== "") body.database = target.database;
  const limit = MAX_BAD_ROWS[target.badRows];
  if (limit !== null) body.max_bad_rows = limit;
  return body;
}
