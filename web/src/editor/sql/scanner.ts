/**
 * The lexical rules of SQL dialects, as the server has them (Contract editor 5.1): where quotes and comments begin and
 * end. Offsets are those of JavaScript strings. Time is linear in the length of the text.
 */

export interface LexicalRules {
  backslash?: boolean;
  eStrings?: boolean;
  rawStrings?: boolean;
  qQuotes?: boolean;
  backTicks?: boolean;
  brackets?: boolean;
  dollarQuotes?: boolean;
  dashesNeedBlank?: boolean;
  hashComments?: boolean;
  slashComments?: boolean;
  nestedComments?: boolean;
  executableComments?: boolean;
  delimiterLines?: boolean;
  triggers?: boolean;
  atomicBodies?: boolean;
  parentheses?: boolean;
  isOneStatement?: boolean;
}

export type Kind = "blank" | "comment" | "quoted" | "word" | "other";

/** A piece of the text: the characters [from, to). */
export interface Lexeme {
  kind: Kind;
  from: number;
  to: number;
}

const HIVE: LexicalRules = { backslash: true, backTicks: true };
const SPARK: LexicalRules = { backslash: true, rawStrings: true, backTicks: true, nestedComments: true };
const MYSQL: LexicalRules = {
  backslash: true,
  backTicks: true,
  dashesNeedBlank: true,
  hashComments: true,
  executableComments: true,
  delimiterLines: true,
};
const STANDARD: LexicalRules = {};
const RULES = new Map<string, LexicalRules>([
  ["hive", HIVE],
  ["impala", HIVE],
  ["sparksql", SPARK],
  ["databricks", SPARK],
  ["mysql", MYSQL],
  ["mariadb", MYSQL],
  ["phoenix", { backslash: true, slashComments: true }],
  ["sqlite", { backTicks: true, brackets: true, triggers: true }],
  ["postgresql", { eStrings: true, dollarQuotes: true, nestedComments: true, atomicBodies: true, parentheses: true }],
  ["duckdb", { eStrings: true, backTicks: true, dollarQuotes: true, nestedComments: true }],
  ["hplsql", { isOneStatement: true }],
  ["oracle", { qQuotes: true }],
  ["clickhouse", { backslash: true, backTicks: true, dollarQuotes: true, hashComments: true }],
  ["bigquery", { backslash: true, backTicks: true, hashComments: true }],
  ["snowflake", { backslash: true, dollarQuotes: true, slashComments: true }],
]);

export function lexicalRules(dialect: string): LexicalRules {
  return RULES.get(dialect.toLowerCase()) ?? STANDARD;
}

const BLANK = /\s+/y;
// Letters, `_` and all characters beyond ASCII; then digits and `$` too.
const WORD = /[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*/y;
const NUMBER = /[0-9][A-Za-z0-9_$\u0080-\uffff]*/y;
const DOLLAR_TAG = /\$(?:[A-Za-z_\u0080-\uffff][A-Za-z0-9_\u0080-\uffff]*)?\$/y;
const Q_OPENING = /[nN]?[qQ]'(\S)/y;
const Q_CLOSING: Readonly<Record<string, string>> = { "[": "]", "{": "}", "(": ")", "<": ">" };
const LINE_END = /[\r\n]/g;
const COMMENT_EDGE = /\/\*|\*\//g;

/** Yield the pieces of the text in order; together they are the whole text. */
export function* lexemes(text: string, rules: LexicalRules, from = 0): Generator<Lexeme> {
  let at = from;
  while (at < text.length) {
    const piece = lexemeAt(text, at, rules);
    yield piece;
    at = piece.to;
  }
}

/** Return the piece that begins at `from`, which must be where a piece begins. */
export function lexemeAt(text: string, from: number, rules: LexicalRules): Lexeme {
  const blankEnd = matchEnd(BLANK, text, from);
  if (blankEnd > from) return { kind: "blank", from, to: blankEnd };
  const commentEnd = endOfComment(text, from, rules);
  if (commentEnd > from) return { kind: "comment", from, to: commentEnd };
  const quotedEnd = endOfQuoted(text, from, rules);
  if (quotedEnd > from) return { kind: "quoted", from, to: quotedEnd };
  const wordEnd = Math.max(matchEnd(WORD, text, from), matchEnd(NUMBER, text, from));
  if (wordEnd > from) return { kind: "word", from, to: wordEnd };
  return { kind: "other", from, to: from + 1 };
}

function matchEnd(pattern: RegExp, text: string, from: number): number {
  pattern.lastIndex = from;
  return pattern.test(text) ? pattern.lastIndex : from;
}

function endOfComment(text: string, from: number, rules: LexicalRules): number {
  const two = text.slice(from, from + 2);
  if (two === "/*" && !(rules.executableComments && text[from + 2] === "!")) {
    if (rules.nestedComments) return endOfNested(text, from);
    const close = text.indexOf("*/", from + 2);
    return close < 0 ? text.length : close + 2;
  }
  const isLineComment =
    (two === "--" && (!rules.dashesNeedBlank || /^[\0-\x20\x7f]?$/.test(text.charAt(from + 2)))) ||
    (two === "//" && rules.slashComments && text[from - 1] !== ":") ||
    (two.startsWith("#") && rules.hashComments);
  return isLineComment ? endOfLine(text, from) : from;
}

function endOfLine(text: string, from: number): number {
  LINE_END.lastIndex = from;
  return LINE_END.exec(text)?.index ?? text.length;
}

function endOfNested(text: string, from: number): number {
  let depth = 0;
  COMMENT_EDGE.lastIndex = from;
  for (let edge = COMMENT_EDGE.exec(text); edge; edge = COMMENT_EDGE.exec(text)) {
    depth += edge[0] === "/*" ? 1 : -1;
    if (depth === 0) return COMMENT_EDGE.lastIndex;
  }
  return text.length;
}

function endOfQuoted(text: string, from: number, rules: LexicalRules): number {
  const first = text.charAt(from);
  if (first === "'" || first === '"') return endOfQuote(text, from, first, rules.backslash ?? false);
  if (first === "`" && rules.backTicks) return endOfQuote(text, from, first, false);
  if (first === "[" && rules.brackets) return endOfQuote(text, from, "]", false);
  if (first === "$" && rules.dollarQuotes) return endOfDollarQuote(text, from);
  const hasQuote = text[from + 1] === "'" || text[from + 1] === '"';
  if (/[eE]/.test(first) && text[from + 1] === "'" && rules.eStrings) return endOfQuote(text, from + 1, "'", true);
  if (/[rR]/.test(first) && hasQuote && rules.rawStrings) {
    return endOfQuote(text, from + 1, text.charAt(from + 1), false);
  }
  return rules.qQuotes ? endOfOracleQuote(text, from) : from;
}

/** Return the end of the quote that opens at `from`. A doubled quote ends one literal and opens the next. */
function endOfQuote(text: string, from: number, close: string, hasEscapes: boolean): number {
  let at = from + 1;
  for (;;) {
    const end = text.indexOf(close, at);
    if (end < 0) return text.length;
    if (!hasEscapes) return end + 1;
    const backslash = text.indexOf("\\", at);
    if (backslash < 0 || backslash > end) return end + 1;
    at = backslash + 2;
  }
}

function endOfDollarQuote(text: string, from: number): number {
  const opened = matchEnd(DOLLAR_TAG, text, from);
  if (opened === from) return from;
  const tag = text.slice(from, opened);
  const close = text.indexOf(tag, opened);
  return close < 0 ? text.length : close + tag.length;
}

function endOfOracleQuote(text: string, from: number): number {
  Q_OPENING.lastIndex = from;
  const opening = Q_OPENING.exec(text);
  const sign = opening?.[1];
  if (!opening || sign === undefined) return from;
  const close = text.indexOf(`${Q_CLOSING[sign] ?? sign}'`, Q_OPENING.lastIndex);
  return close < 0 ? text.length : close + 2;
}
