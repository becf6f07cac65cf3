/** Exports of results to files of a store and to tables (Contract exports). */
import { api, data, type Schemas } from "../api/client.ts";
import type { Execution } from "./execution.ts";

type Request = Schemas["ExportRequest"];
export type Format = NonNullable<Request["format"]>;
export type Compression = NonNullable<Request["compression"]>;
export type IfExists = NonNullable<Request["if_exists"]>;

export const FORMATS: ReadonlyArray<{ value: Format; label: string; compressions: readonly Compression[] }> = [
  { value: "csv", label: "CSV", compressions: ["none", "gzip", "zstd"] },
  { value: "tsv", label: "TSV", compressions: ["none", "gzip", "zstd"] },
  { value: "ndjson", label: "JSON Lines", compressions: ["none", "gzip", "zstd"] },
  { value: "xlsx", label: "Excel", compressions: ["none"] },
  { value: "parquet", label: "Parquet", compressions: ["none", "gzip", "zstd"] },
  { value: "arrow", label: "Arrow", compressions: ["none", "zstd"] },
  { value: "feather", label: "Feather", compressions: ["none", "zstd"] },
];

/** Dialects whose tables can take rows (Contract exports 8). */
const TABLE_DIALECTS = ["postgresql", "mysql", "sqlite", "duckdb", "hive", "sparksql", "trino", "phoenix"];

export function takesTables(dialect: string): boolean {
  return TABLE_DIALECTS.includes(dialect);
}

export interface FileTarget {
  directory: string;
  name: string;
  format: Format;
  compression: Compression;
  header: boolean;
  guard: boolean;
  /** Rows of each file of a folder; null for a single file. */
  splitRows: number | null;
  replaces: boolean;
}

export interface TableTarget {
  connector: string;
  database: string;
  table: string;
  ifExists: IfExists;
}

export interface Source {
  operationId: string;
  statementId: number | null;
  /** Export the stored rows although a limit of the server has cut the result. */
  allowsTruncated: boolean;
}

/** Start an export to a file or a folder of files; returns the id of its operation. Throws ApiError. */
export async function exportFile(source: Source, target: FileTarget): Promise<string> {
  const isText = target.format === "csv" || target.format === "tsv";
  return await start(source, {
    path: pathOf(target),
    format: target.format,
    // Parquet has a compression of its own, which is the default.
    ...(target.format === "parquet" && target.compression === "none" ? {} : { compression: target.compression }),
    ...(isText ? { header: target.header, guard: target.guard } : {}),
    ...(target.splitRows === null
      ? { if_exists: target.replaces ? "replace" : "error" }
      : { split_rows: target.splitRows }),
  });
}

/** Start an export to a table; returns the id of its operation. Throws ApiError. */
export async function exportTable(source: Source, target: TableTarget): Promise<string> {
  const { connector, database, table, ifExists } = target;
  return await start(source, { connector, database: database || null, table, if_exists: ifExists });
}

async function start({ operationId, statementId, allowsTruncated }: Source, target: Request): Promise<string> {
  const body = { operationId, statement_id: statementId, allow_truncated: allowsTruncated, ...target };
  return (await data(api.POST("/api/v1/editor/export_result", { body }))).history_uuid;
}

export function pathOf({ directory, name }: Pick<FileTarget, "directory" | "name">): string {
  return directory.endsWith("/") ? directory + name : `${directory}/${name}`;
}

const EXTENSIONS: Record<Compression, string> = { none: "", gzip: ".gz", zstd: ".zst" };

/** Return a name of a file without its old extensions and with those of the format; a folder has none. */
export function named(name: string, format: Format, compression: Compression, isFolder: boolean): string {
  const stem = name.replace(/\.(csv|tsv|ndjson|jsonl|xlsx|parquet|arrow|feather)(\.gz|\.zst)?$/i, "");
  const isWhole = format === "csv" || format === "tsv" || format === "ndjson";
  return isFolder ? stem : `${stem}.${format}${isWhole ? EXTENSIONS[compression] : ""}`;
}

export interface Exported {
  rows: string;
  /** The file or folder; null for a table. */
  path: string | null;
  /** `database.table`, or the table alone; null for files. */
  table: string | null;
}

/** Return what an export that has ended has written, once its row has come. */
export function exportedBy(execution: Execution): Exported | null {
  const source = execution.rows.value;
  const columns = source?.columns.value;
  if (!source || !columns) return null;
  // The rows are no signal of their own: a new version may have loaded the first one.
  source.version.value;
  const row = source.row(0);
  if (row === undefined) return null;
  const cell = (name: string) => row[columns.findIndex((column) => column.name === name)] ?? null;
  const [path, table] = [cell("path"), cell("table")];
  return {
    rows: String(cell("rows") ?? ""),
    path: typeof path === "string" ? path : null,
    table: typeof table === "string" ? table : null,
  };
}
