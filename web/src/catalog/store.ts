/**
 * The databases, tables, columns and functions of the connectors, cached for the tree and for completion.
 *
 * All calls are `editor/autocomplete` (Contract editor 10.1, 10.2). Names of connectors are interpreter ids. The
 * database `""` is the connector's default one. All functions reject with ApiError, or with AbortError if the caller's
 * signal was aborted.
 */
import { effect, type ReadonlySignal, signal } from "@preact/signals";
import { defaultPathSerializer } from "openapi-fetch";
import { api, data, type Schemas } from "../api/client.ts";
import { within } from "../api/timeouts.ts";
import { session } from "../app/session.ts";
import { type Lookup, LookupCache, type LookupOptions } from "./lookupCache.ts";

export type { LookupOptions } from "./lookupCache.ts";
export type TableSummary = Schemas["TableSummary"];
/** A table with its columns (`extended_columns`), keys and comment. */
export type TableMetadata = Schemas["TableMetadata"];
export type ColumnSummary = Schemas["ColumnSummary"];
type FunctionSummary = Schemas["FunctionSummary"];

export interface TableList {
  /** In the natural order of the names, without regard to case. */
  tables: readonly TableSummary[];
  /** Whether these are all tables; false for a part, and if the database has more than MAX_TABLES. */
  isComplete: boolean;
}

/** Tables of one database that are loaded at most. The search finds the others. */
export const MAX_TABLES = 100_000;
const FIRST_PAGE = 500;
const PAGE = 5000;
/** Changes by other programs show after this time; changes by statements of this page at once (`forget`). */
const MAX_AGE_MS = 5 * 60_000;

const databaseLists = new LookupCache<readonly string[]>(limits(50_000, (names) => names.length));
const tableLists = new LookupCache<TableList>(limits(200_000, (list) => list.tables.length));
const tableColumns = new LookupCache<TableMetadata>(limits(100_000, (table) => table.columns.length));
const functionLists = new LookupCache<readonly FunctionSummary[]>(limits(50_000, (list) => list.length));
const changes = signal(0);

/** Grows with each `forget`. A view that shows names loads them again when it changes. */
export const revision: ReadonlySignal<number> = changes;

/** Return the names of the databases that the caller may see. */
export function databases(connector: string, options?: LookupOptions<readonly string[]>): Promise<readonly string[]> {
  const request = async ({ signal, refresh }: Lookup<readonly string[]>) => {
    const body = await data(
      api.POST("/api/v1/editor/autocomplete", { body: fields(connector, { refresh }), signal: within(signal) }),
    );
    return "databases" in body ? body.databases : [];
  };
  return databaseLists.load(keyOf(connector), request, options);
}

/**
 * Return the tables and views of a database.
 *
 * Long lists are received in parts, each of which contains the earlier ones: `onPart` gets the first 500 names before
 * the promise is fulfilled.
 */
export function tables(connector: string, database: string, options?: LookupOptions<TableList>): Promise<TableList> {
  const request = async ({ signal, refresh, publish }: Lookup<TableList>) => {
    const first = await tablePage(connector, database, { refresh, limit: FIRST_PAGE }, signal);
    if (first.isComplete) return first;
    publish(first);
    return await allPages(connector, database, signal, publish);
  };
  return tableLists.load(keyOf(connector, database), request, options);
}

/** Return a table or view with its columns and keys. */
export function columns(
  connector: string,
  database: string,
  table: string,
  options?: LookupOptions<TableMetadata>,
): Promise<TableMetadata> {
  const request = ({ signal, refresh }: Lookup<TableMetadata>) =>
    data(
      api.POST("/api/v1/editor/autocomplete/{database}/{table}", {
        params: { path: { database, table } },
        body: fields(connector, { refresh }),
        signal: within(signal),
      }),
    );
  return tableColumns.load(keyOf(connector, database, table), request, options);
}

/** Return the functions that are visible by default; with a database, those that are defined in it. */
export function functions(
  connector: string,
  database: string | null,
  options?: LookupOptions<readonly FunctionSummary[]>,
): Promise<readonly FunctionSummary[]> {
  const request = async ({ signal, refresh }: Lookup<readonly FunctionSummary[]>) => {
    const call = { body: fields(connector, { refresh, operation: "functions" }), signal: within(signal) };
    const body = await (database === null
      ? data(api.POST("/api/v1/editor/autocomplete", call))
      : data(api.POST("/api/v1/editor/autocomplete/{database}", { ...inDatabase(database), ...call })));
    return "functions" in body ? body.functions : [];
  };
  return functionLists.load(database === null ? keyOf(connector) : keyOf(connector, database), request, options);
}

/** The values that are cached, or undefined. */
export const loaded = {
  databases: (connector: string) => databaseLists.peek(keyOf(connector)),
  tables: (connector: string, database: string) => tableLists.peek(keyOf(connector, database)),
  columns: (connector: string, database: string, table: string) => tableColumns.peek(keyOf(connector, database, table)),
  functions: (connector: string) => functionLists.peek(keyOf(connector)),
} as const;

/** Drop what is cached of a connector, for example after a statement changed its objects; without one, of all. */
export function forget(connector?: string): void {
  drop(connector === undefined ? "" : keyOf(connector).slice(0, -1));
  changes.value = changes.peek() + 1;
}

// Another user's names must not stay after the logout.
effect(() => {
  if (!session.isLoggedIn.value) drop("");
});

function drop(prefix: string): void {
  for (const cache of [databaseLists, tableLists, tableColumns, functionLists]) cache.forget(prefix);
}

function limits<T>(maxWeight: number, length: (value: T) => number) {
  return { maxWeight, weigh: (value: T) => length(value) + 1, maxAgeMs: MAX_AGE_MS };
}

/** Keys of one connector, and of one database, have a common prefix: the array without its closing bracket. */
function keyOf(...path: [connector: string, ...names: string[]]): string {
  return JSON.stringify(path);
}

function fields(connector: string, more: Omit<Schemas["AutocompleteRequest"], "snippet">) {
  return { snippet: { type: connector }, ...more };
}

/** The slash at the end makes an empty name a segment of its own: `autocomplete//`, not the list of the databases. */
function inDatabase(database: string) {
  const pathSerializer: typeof defaultPathSerializer = (path, parameters) =>
    `${defaultPathSerializer(path, parameters)}/`;
  return { params: { path: { database } }, pathSerializer };
}

async function tablePage(
  connector: string,
  database: string,
  part: Omit<Schemas["AutocompleteRequest"], "snippet">,
  signal: AbortSignal,
): Promise<TableList> {
  const body = await data(
    api.POST("/api/v1/editor/autocomplete/{database}", {
      ...inDatabase(database),
      body: fields(connector, part),
      signal: within(signal),
    }),
  );
  if (!("tables_meta" in body)) return { tables: [], isComplete: true };
  return { tables: body.tables_meta, isComplete: !body.truncated };
}

async function allPages(
  connector: string,
  database: string,
  signal: AbortSignal,
  publish: (part: TableList) => void,
): Promise<TableList> {
  let found: TableList = { tables: [], isComplete: false };
  for (let page = 1; !found.isComplete && found.tables.length < MAX_TABLES; page++) {
    const next = await tablePage(connector, database, { page, limit: PAGE }, signal);
    found = { tables: [...found.tables, ...next.tables], isComplete: next.isComplete };
    publish(found);
  }
  return found;
}
