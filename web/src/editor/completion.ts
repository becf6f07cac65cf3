/** Completion of names and keywords. Nothing waits for it: CodeMirror requests it after a pause and drops late answers. */
import {
  type Completion,
  type CompletionContext,
  type CompletionResult,
  type CompletionSource,
  insertCompletionText,
} from "@codemirror/autocomplete";
import { keywordCompletionSource } from "@codemirror/lang-sql";
import type { EditorView } from "@codemirror/view";
import type { Connector } from "../app/config.ts";
import { quoted } from "../catalog/names.ts";
import * as catalog from "../catalog/store.ts";
import { type NameContext, nameContext, type TableReference } from "./sql/context.ts";
import { sqlDialect } from "./sql/dialects.ts";
import { split, statementAt } from "./sql/statements.ts";

/** Where names are looked up. `database` is empty for the default one. */
export interface Scope {
  connector: Connector;
  database: string;
}

const COMMON_KEYWORDS = new Set(
  (
    "SELECT FROM WHERE GROUP ORDER BY HAVING LIMIT JOIN LEFT INNER ON USING AS AND OR NOT IN IS NULL LIKE BETWEEN CASE " +
    "WHEN THEN ELSE END WITH UNION ALL DISTINCT INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE VIEW DROP ALTER DESC " +
    "ASC COUNT OVER PARTITION EXISTS CAST"
  ).split(" "),
);
/** More options than this are matched here first: CodeMirror compares all of them at each key. */
const MAX_OPTIONS = 2000;
/** Of longer texts only this part around the cursor is read. */
const READ_CHARACTERS = 100_000;
const BOOST = { column: 4, alias: 3, table: 2, database: 1, function: 0, commonKeyword: -1, keyword: -3 };
const NAME = /^[\p{L}\p{N}_$]*$/u;

/** Return the sources for a scope that may change: it is read at each request. */
export function completionSources(scope: () => Scope | null): CompletionSource[] {
  return [(context) => keywords(context, scope()), (context) => names(context, scope())];
}

/** Request the names that are needed first, so that they are there when the user types. */
export function warmUp({ connector, database }: Scope): void {
  const ignore = () => undefined;
  catalog.databases(connector.id).then((all) => {
    const current = database || defaultDatabase(connector, all);
    if (current !== null) catalog.tables(connector.id, current).catch(ignore);
  }, ignore);
  catalog.functions(connector.id, null).catch(ignore);
}

async function keywords(context: CompletionContext, scope: Scope | null): Promise<CompletionResult | null> {
  const dialect = sqlDialect(scope?.connector.dialect ?? "");
  const found = await keywordCompletionSource(dialect, true, (label, type) => ({
    label,
    type,
    boost: COMMON_KEYWORDS.has(label) ? BOOST.commonKeyword : BOOST.keyword,
  }))(context);
  if (!found) return null;
  // There are hundreds of keywords, so that any three letters are within some of them. Without `validFor` they are
  // compared again at each key.
  const typed = context.state.sliceDoc(found.from, context.pos).toUpperCase();
  return { from: found.from, options: found.options.filter(({ label }) => label.startsWith(typed)) };
}

async function names(context: CompletionContext, scope: Scope | null): Promise<CompletionResult | null> {
  if (scope === null) return null;
  const { statement, offset, start } = statementAround(context, scope.connector.dialect);
  const found = nameContext(statement, offset, scope.connector.dialect);
  if (found === null) return null;
  const hasPath = found.path.length > 0;
  if (!context.explicit && found.word === "" && !hasPath && !found.hasQuote && found.kind !== "table") return null;
  const ended = new AbortController();
  context.addEventListener("abort", () => ended.abort());
  const finder = new NameFinder(scope, ended.signal);
  const options = hasPath ? await finder.below(found) : await finder.free(found);
  // Names that arrive after the focus has moved must not open a list over what the user does then.
  if (context.aborted || options.length === 0 || context.view?.hasFocus === false) return null;
  const from = start + found.from;
  if (found.kind === "column" && !hasPath) return { from, options };
  if (options.length <= MAX_OPTIONS) return { from, options, validFor: found.hasQuote ? /^[^"`]*$/ : NAME };
  const typed = found.word.toLowerCase();
  const matching = options.filter(({ label }) => label.toLowerCase().includes(typed));
  return { from, options: matching.slice(0, MAX_OPTIONS) };
}

function statementAround(context: CompletionContext, dialect: string) {
  const { doc } = context.state;
  const readFrom = Math.max(0, context.pos - READ_CHARACTERS);
  const text = doc.sliceString(readFrom, Math.min(doc.length, context.pos + READ_CHARACTERS));
  const offset = context.pos - readFrom;
  const span = statementAt(text, split(text, dialect), offset);
  // The blanks between a statement and the cursor belong to it: `SELECT * FROM |`.
  if (span === null || offset < span.from) return { statement: "", offset: 0, start: context.pos };
  const isBehind = span.terminated > span.to && offset >= span.terminated;
  if (isBehind) return { statement: "", offset: 0, start: context.pos };
  const statement = text.slice(span.from, Math.max(span.to, offset));
  return { statement, offset: offset - span.from, start: readFrom + span.from };
}

class NameFinder {
  readonly #connector: Connector;
  readonly #database: string;
  readonly #signal: AbortSignal;

  constructor({ connector, database }: Scope, signal: AbortSignal) {
    this.#connector = connector;
    this.#database = database;
    this.#signal = signal;
  }

  /** What fits where no path is before the word. */
  async free(found: NameContext): Promise<Completion[]> {
    if (found.kind === "other") return [];
    if (found.kind === "table") {
      const [tables, databases] = await Promise.all([this.#tablesOf(null), this.#databases()]);
      return [
        ...found.withNames.map((name) => this.#name(name, "class", BOOST.table, "WITH")),
        ...tables,
        ...databases,
      ];
    }
    const [columns, functions] = await Promise.all([this.#columnsOfAll(found.tables), this.#functions(found.word)]);
    return [...columns, ...this.#aliases(found.tables), ...functions];
  }

  /** What fits behind `a.` or `a.b.`: columns of a table or an alias, tables of a database, schemas of a catalog. */
  async below({ path, tables }: NameContext): Promise<Completion[]> {
    const first = path[0] ?? "";
    const meant =
      path.length === 1 ? tables.find((table) => isSame(table.alias ?? table.path.at(-1), first)) : undefined;
    if (meant) return await this.#columnsOf(meant);
    const databases = await this.#databaseNames();
    const joined = path.join(".");
    const database = databases.find((name) => isSame(name, joined));
    if (database !== undefined) return await this.#tablesOf(database);
    const schemas = databases.filter((name) => name.toLowerCase().startsWith(`${joined.toLowerCase()}.`));
    if (schemas.length > 0) {
      return schemas.map((name) => this.#name(name.slice(joined.length + 1), "namespace", BOOST.database, "database"));
    }
    return await this.#columnsOf({ path, alias: null });
  }

  async #columnsOfAll(tables: readonly TableReference[]): Promise<Completion[]> {
    const lists = await Promise.all(tables.map((table) => this.#columnsOf(table)));
    if (tables.length < 2) return lists.flat();
    return lists.flatMap((list, index) => {
      const table = tables[index];
      const label = table?.alias ?? table?.path.at(-1) ?? "";
      return list.map((column) => ({ ...column, detail: `${label} · ${column.detail ?? ""}` }));
    });
  }

  async #columnsOf({ path }: TableReference): Promise<Completion[]> {
    const table = path.at(-1);
    if (table === undefined) return [];
    const database = path.length > 1 ? path.slice(0, -1).join(".") : await this.#currentDatabase();
    const load = catalog.columns(this.#connector.id, database ?? "", table, { signal: this.#signal });
    const found = await load.catch(() => null);
    return (found?.extended_columns ?? []).map(({ name, type, comment }) => ({
      ...this.#name(name, "property", BOOST.column, type),
      ...(comment ? { info: comment } : {}),
    }));
  }

  async #tablesOf(database: string | null): Promise<Completion[]> {
    const name = database ?? (await this.#currentDatabase());
    if (name === null) return [];
    const list = await catalog.tables(this.#connector.id, name, { signal: this.#signal }).catch(() => null);
    return (list?.tables ?? []).map((table) => ({
      ...this.#name(table.name, "class", BOOST.table, table.type === "Table" ? "table" : "view"),
      ...(table.comment ? { info: table.comment } : {}),
    }));
  }

  async #databases(): Promise<Completion[]> {
    const all = await this.#databaseNames();
    return all.map((name) => this.#name(name, "namespace", BOOST.database, "database", name.split(".")));
  }

  /** Functions whose names contain what was typed. Their number makes other likenesses mere noise. */
  async #functions(typed: string): Promise<Completion[]> {
    const part = typed.toLowerCase();
    const load = catalog.functions(this.#connector.id, null, { signal: this.#signal });
    const all = await load.catch(() => []);
    return all
      .filter(({ name }) => NAME.test(name) && name.toLowerCase().includes(part) && !name.startsWith("__"))
      .map(({ name, signature, return_type: result }) => ({
        label: name,
        type: "function",
        boost: BOOST.function,
        detail: result,
        apply: applyFunction,
        ...(signature ? { info: signature } : {}),
      }));
  }

  #aliases(tables: readonly TableReference[]): Completion[] {
    return tables.map(({ path, alias }) =>
      this.#name(alias ?? path.at(-1) ?? "", "variable", BOOST.alias, path.join(".")),
    );
  }

  async #databaseNames(): Promise<readonly string[]> {
    return await catalog.databases(this.#connector.id, { signal: this.#signal }).catch(() => []);
  }

  async #currentDatabase(): Promise<string | null> {
    if (this.#database !== "") return this.#database;
    return defaultDatabase(this.#connector, await this.#databaseNames());
  }

  #name(name: string, type: string, boost: number, detail: string, parts: readonly string[] = [name]): Completion {
    const text = parts.map((part) => quoted(this.#connector, part)).join(".");
    // A quoted name replaces the quote that was typed too: the result begins at it.
    return text === name
      ? { label: name, type, boost, detail }
      : { label: text, displayLabel: name, type, boost, detail };
  }
}

/** Insert a function with its parentheses, unless they are there, and put the cursor into them. */
function applyFunction(view: EditorView, completion: Completion, from: number, to: number): void {
  const hasParentheses = view.state.sliceDoc(to, to + 1) === "(";
  const text = hasParentheses ? completion.label : `${completion.label}()`;
  view.dispatch(insertCompletionText(view.state, text, from, to));
  if (!hasParentheses) view.dispatch({ selection: { anchor: from + text.length - 1 } });
}

function isSame(name: string | undefined, other: string): boolean {
  return name?.toLowerCase() === other.toLowerCase();
}

const DEFAULT_DATABASES: Readonly<Record<string, string>> = { postgresql: "public", duckdb: "main", sqlite: "main" };

/** Return the database that unqualified names most likely mean, or null if that cannot be said. */
function defaultDatabase({ dialect }: Connector, all: readonly string[]): string | null {
  const usual = DEFAULT_DATABASES[dialect] ?? "default";
  if (all.includes(usual)) return usual;
  return all.length === 1 ? (all[0] ?? null) : null;
}
