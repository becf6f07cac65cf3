/** Names of databases, tables and columns as SQL text and as addresses. */
import type { Connector } from "../app/config.ts";
import { at } from "../app/prefix.ts";

type Dialect = Pick<Connector, "dialect" | "dialect_properties">;

const SAMPLE_ROWS = 100;
/** Words that no dialect, or not every dialect, permits as a name without quotes. */
const RESERVED = new Set(
  (
    "all alter analyze and any array as asc between both by case cast check column comment constraint create cross " +
    "cube current current_date current_time current_timestamp current_user database date decimal default delete desc " +
    "describe distinct drop else end escape except exists explain extract false fetch filter first float for foreign " +
    "from full function grant group grouping having if in index inner insert int integer intersect interval into is " +
    "join key last lateral leading left like limit local localtime localtimestamp map merge minus month natural not " +
    "null of offset on only or order outer over overlaps partition position precision primary range references " +
    "replace revoke right rollup row rows schema select session_user set show smallint some start symmetric system " +
    "table tablesample then time timestamp to trailing trigger true truncate union unique unnest update use user " +
    "using values varchar view when where window with year"
  ).split(" "),
);

const LOWER_CASE = /^[a-z_][a-z0-9_]*$/;
const UPPER_CASE = /^[A-Z_][A-Z0-9_]*$/;
/** What names without quotes are in dialects that change their case; in the others the case has no effect or is kept. */
const FOLDED_NAMES: Readonly<Record<string, RegExp>> = {
  postgresql: LOWER_CASE,
  oracle: UPPER_CASE,
  phoenix: UPPER_CASE,
  snowflake: UPPER_CASE,
};

/** Return a name as it is written in a statement: quoted if the dialect could read it as something else. */
export function quoted(dialect: Dialect, name: string): string {
  const mark = dialect.dialect_properties.sql_identifier_quote || '"';
  const plain = FOLDED_NAMES[dialect.dialect] ?? /^[A-Za-z_][A-Za-z0-9_]*$/;
  if (plain.test(name) && !RESERVED.has(name.toLowerCase())) return name;
  return mark + name.replaceAll(mark, mark + mark) + mark;
}

/** Return `database.table` as it is written in a statement. */
export function qualified(dialect: Dialect, database: string, table: string): string {
  return [...databaseParts(dialect, database), table].map((name) => quoted(dialect, name)).join(".");
}

/** Return a statement that selects the first rows of a table. */
export function selectStatement(dialect: Dialect, database: string, table: string): string {
  const name = qualified(dialect, database, table);
  if (dialect.dialect === "mssql") return `SELECT TOP ${SAMPLE_ROWS} *\nFROM ${name};`;
  if (dialect.dialect === "oracle") return `SELECT *\nFROM ${name}\nFETCH FIRST ${SAMPLE_ROWS} ROWS ONLY;`;
  return `SELECT *\nFROM ${name}\nLIMIT ${SAMPLE_ROWS};`;
}

/** Databases of Trino are `catalog.schema`; parts with a dot are in double quotes (Contract editor 10). */
function databaseParts({ dialect }: Dialect, database: string): string[] {
  if (database === "") return [];
  if (dialect !== "trino" && dialect !== "presto") return [database];
  const parts = database.match(/"(?:[^"]|"")*"|[^."]+/g) ?? [];
  return parts.map((part) => (part.startsWith('"') ? part.slice(1, -1).replaceAll('""', '"') : part));
}

/** Return the address of the page of a table. */
export function tableAddress(connector: string, database: string, table: string): string {
  // Routes have no empty segments, so the database without a name is `~`, and names of tildes have one more.
  const segment = /^~*$/.test(database) ? `${database}~` : database;
  return at(`/tables/${[connector, segment, table].map(encodeURIComponent).join("/")}`);
}

/** Return the database of a route parameter that `tableAddress` wrote. */
export function databaseOfSegment(segment: string): string {
  return /^~+$/.test(segment) ? segment.slice(1) : segment;
}
