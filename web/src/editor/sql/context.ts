/** What a statement says about the place of the cursor: which names fit, and which tables are there. */
import { identifierQuote } from "./dialects.ts";
import { type Lexeme, lexemes, lexicalRules } from "./scanner.ts";

export interface TableReference {
  /** The parts of the name as written, without quotes: database and table, or the table alone. */
  path: readonly string[];
  alias: string | null;
}

export interface NameContext {
  /** `table`: after FROM and the like; `column`: in an expression; `other`: only keywords fit. */
  kind: "table" | "column" | "other";
  /** The names before the dot in front of the word: `a`, `b` of `a.b.wo|`. */
  path: readonly string[];
  /** Where the word at the cursor begins, with its quote. */
  from: number;
  /** The word up to the cursor, without its quote. */
  word: string;
  hasQuote: boolean;
  tables: readonly TableReference[];
  /** The names that the statement's WITH defines. */
  withNames: readonly string[];
}

interface Token {
  /** The name, or the sign; keywords are compared by `upper`. */
  text: string;
  upper: string;
  isName: boolean;
  isQuoted: boolean;
  from: number;
  to: number;
}

const BEFORE_TABLES = new Set(["FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "SUMMARIZE", "TRUNCATE"]);
const CLAUSES = new Set(
  [...BEFORE_TABLES].concat("SELECT WHERE ON USING GROUP ORDER HAVING SET VALUES LIMIT RETURNING QUALIFY".split(" ")),
);
const NEW_NAME = new Set(["AS"]);
const NO_ALIAS = new Set(
  (
    "WHERE GROUP ORDER HAVING LIMIT JOIN INNER LEFT RIGHT FULL CROSS NATURAL ON USING UNION EXCEPT INTERSECT MINUS SET " +
    "VALUES SELECT WINDOW QUALIFY LATERAL TABLESAMPLE AS FETCH OFFSET FOR WHEN RETURNING PIVOT UNPIVOT ASOF SEMI ANTI " +
    "POSITIONAL SAMPLE PARTITION DEFAULT FROM WITH CLUSTER SORT DISTRIBUTE OUTER"
  ).split(" "),
);

/** Return what fits at an offset of a statement; null within strings and comments. */
export function nameContext(statement: string, offset: number, dialect: string): NameContext | null {
  const all = tokens(statement, dialect, offset);
  if (all === null) return null;
  const at = all.findIndex((token) => token.isName && token.from < offset && offset <= token.to);
  const current = at < 0 ? null : all[at];
  let before = at < 0 ? all.filter((token) => token.to <= offset).length : at;
  const path: string[] = [];
  while (all[before - 1]?.text === "." && all[before - 2]?.isName) {
    path.unshift(all[before - 2]?.text ?? "");
    before -= 2;
  }
  const start = current?.from ?? offset;
  if (isParameter(statement, start)) return null;
  const written = statement.slice(start, offset);
  return {
    kind: kindAt(all, before),
    path,
    from: start,
    word: current?.isQuoted ? written.slice(1) : written,
    hasQuote: current?.isQuoted ?? false,
    tables: tableReferences(all, current ?? null),
    withNames: withNames(all),
  };
}

/** Return whether the name that begins here is that of a parameter: `:name`, `${name}`. `::type` is a cast. */
function isParameter(statement: string, start: number): boolean {
  const before = statement.slice(Math.max(0, start - 2), start);
  return before === "${" || (before.endsWith(":") && before !== "::");
}

/** Return the tokens without blanks and comments; null if the offset is within a string or a comment. */
function tokens(statement: string, dialect: string, offset: number): Token[] | null {
  const quote = identifierQuote(dialect);
  const found: Token[] = [];
  for (const piece of lexemes(statement, lexicalRules(dialect))) {
    const text = statement.slice(piece.from, piece.to);
    const isInside = isWithin(piece, text, offset);
    const isQuoted = piece.kind === "quoted" && text.startsWith(quote);
    const isString = piece.kind === "quoted" && !isQuoted;
    if (isInside && (isString || piece.kind === "comment")) return null;
    if (piece.kind === "blank" || piece.kind === "comment") continue;
    const token = tokenOf(piece, isQuoted ? unquoted(text, quote) : text, isQuoted);
    // A quote that is still open reaches to the end of the text, and the name that is typed only to the cursor.
    found.push(isQuoted && isInside ? { ...token, to: Math.min(piece.to, offset) } : token);
  }
  return found;
}

function tokenOf({ kind, from, to }: Lexeme, text: string, isQuoted: boolean): Token {
  const isWord = kind === "word";
  return {
    text,
    upper: isWord ? text.toUpperCase() : text,
    isName: isQuoted || (isWord && !/^\d/.test(text)),
    isQuoted,
    from,
    to,
  };
}

/** Return whether what is typed at the offset becomes part of the piece. */
function isWithin({ kind, from, to }: Lexeme, text: string, offset: number): boolean {
  if (offset <= from || offset > to) return false;
  if (offset < to) return true;
  if (kind === "comment") return !text.endsWith("*/");
  return kind === "quoted" && (text.length === 1 || text.at(-1) !== text[0]);
}

function unquoted(text: string, quote: string): string {
  const end = text.length > 1 && text.endsWith(quote) ? -1 : text.length;
  return text.slice(1, end).replaceAll(quote + quote, quote);
}

/** Return which names fit after the token before `index`. */
function kindAt(all: readonly Token[], index: number): NameContext["kind"] {
  const previous = all[index - 1];
  if (previous && isKeyword(previous, BEFORE_TABLES)) return "table";
  // What follows AS is a new name.
  if (previous && isKeyword(previous, NEW_NAME)) return "other";
  const clause = clauseBefore(all, index);
  if (clause === null) return "other";
  if (!BEFORE_TABLES.has(clause.keyword) || clause.isInParentheses) return "column";
  return previous?.text === "," ? "table" : "other";
}

/** Return the keyword of the clause of the token at `index`, found by walking back over closed parentheses. */
function clauseBefore(all: readonly Token[], index: number): { keyword: string; isInParentheses: boolean } | null {
  let depth = 0;
  let isInParentheses = false;
  for (const token of all.slice(0, index).reverse()) {
    if (token.text === ")") depth += 1;
    else if (token.text === "(") {
      isInParentheses ||= depth === 0;
      depth = Math.max(0, depth - 1);
    } else if (depth === 0 && isKeyword(token, CLAUSES)) return { keyword: token.upper, isInParentheses };
  }
  return null;
}

function isKeyword(token: Token, keywords: ReadonlySet<string>): boolean {
  return !token.isQuoted && keywords.has(token.upper);
}

/** Return the tables that the statement names, without the name that is typed. */
function tableReferences(all: readonly Token[], current: Token | null): TableReference[] {
  return all.flatMap((token, index) => {
    if (!isKeyword(token, BEFORE_TABLES)) return [];
    return referencesFrom(all, index + 1, token.upper === "FROM")
      .filter(({ tokens }) => !tokens.includes(current))
      .map(({ path, alias }) => ({ path, alias }));
  });
}

interface FoundReference extends TableReference {
  /** The tokens of the name. */
  tokens: ReadonlyArray<Token | null>;
  /** The index of the token after the reference. */
  next: number;
}

function referencesFrom(all: readonly Token[], start: number, isList: boolean): FoundReference[] {
  const found: FoundReference[] = [];
  for (let reference = referenceAt(all, start); reference; ) {
    found.push(reference);
    const hasMore = isList && all[reference.next]?.text === ",";
    reference = hasMore ? referenceAt(all, reference.next + 1) : null;
  }
  return found;
}

function referenceAt(all: readonly Token[], start: number): FoundReference | null {
  const names: Token[] = [];
  let next = start;
  for (let name = all[next]; name && isFreeName(name); name = all[next]) {
    names.push(name);
    if (all[next + 1]?.text !== ".") break;
    next += 2;
  }
  const after = all[next + 1];
  if (names.length === 0 || after?.text === "(") return null;
  const hasAs = after?.upper === "AS";
  const alias = hasAs ? all[next + 2] : after;
  const path = names.map(({ text }) => text);
  if (!alias || !isFreeName(alias)) return { path, alias: null, tokens: names, next: next + 1 };
  return { path, alias: alias.text, tokens: names, next: next + (hasAs ? 3 : 2) };
}

function isFreeName(token: Token): boolean {
  return token.isName && !isKeyword(token, NO_ALIAS);
}

function withNames(all: readonly Token[]): string[] {
  if (!all.some((token) => token.upper === "WITH" && !token.isQuoted)) return [];
  return all.flatMap((token, index) =>
    token.upper === "AS" && all[index + 1]?.text === "(" && all[index - 1]?.isName ? [all[index - 1]?.text ?? ""] : [],
  );
}
