/**
 * Parameters of a statement: markers `:name`, whose values the server binds (docs/clients.md), and variables `${name}`
 * or `${name=default}` of Hue, which the client replaces in the text (Contract editor 2.3).
 */
import { lexemes, lexicalRules } from "./scanner.ts";

export const TYPES = [
  "boolean",
  "bigint",
  "double",
  "decimal",
  "varchar",
  "date",
  "time",
  "timestamp",
  "timestamp_tz",
] as const;
/** `auto`: a number if the text is one, otherwise a string without a type. `null`: no value. */
export type ParameterType = (typeof TYPES)[number] | "auto" | "null";

export interface ParameterValue {
  text: string;
  type: ParameterType;
}

export interface ParameterField {
  name: string;
  /** A variable is text of the statement; it has no type. */
  isVariable: boolean;
  /** The default of a variable, if the statement has one. */
  fallback: string | null;
}

/** What is sent: the text with its variables replaced, and the values of its markers. */
export interface Bound {
  text: string;
  values: Record<string, unknown> | null;
  /** The names of the fields that have no value. */
  missing: string[];
  /** Convert an offset in `text` to one in the source. */
  toSource: (offset: number) => number;
}

interface Place {
  from: number;
  to: number;
  field: ParameterField;
}

const NAME = /[A-Za-z_][A-Za-z0-9_]*/y;
const VARIABLE = /\$\{([A-Za-z_][A-Za-z0-9_]*)(?:=([^{}]*))?\}/g;
const WORD_BEFORE = /[\p{L}\p{N}_$)\]}'"`:]/u;
const NUMBER = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?$/;
const DIGITS_OF_A_DOUBLE = 15;

/** Return the fields of a text in the order of their first use, each name once. */
export function parameterFields(text: string, dialect: string): ParameterField[] {
  const fields = new Map<string, ParameterField>();
  for (const { field } of places(text, dialect)) {
    const known = fields.get(field.name);
    if (!known || (known.fallback === null && field.fallback !== null)) fields.set(field.name, field);
  }
  return [...fields.values()];
}

/** Replace the variables of the source, and return the values of its markers. */
export function bind(source: string, dialect: string, given: Readonly<Record<string, ParameterValue>>): Bound {
  const all = places(source, dialect);
  const missing = new Set<string>();
  const values: Record<string, unknown> = {};
  const pieces: Array<{ sourceTo: number; textFrom: number; textTo: number }> = [];
  let text = "";
  let at = 0;
  for (const { from, to, field } of all) {
    const value = given[field.name];
    if (!isGiven(value, field)) missing.add(field.name);
    if (field.isVariable) {
      text += source.slice(at, from);
      const written = value?.text || (field.fallback ?? "");
      pieces.push({ sourceTo: to, textFrom: text.length, textTo: text.length + written.length });
      text += written;
      at = to;
    } else if (value) {
      values[field.name] = sent(value);
    }
  }
  text += source.slice(at);
  const hasMarkers = all.some(({ field }) => !field.isVariable);
  return {
    text,
    values: hasMarkers ? values : null,
    missing: [...missing],
    toSource: (offset) => back(pieces, offset),
  };
}

/** Return whether a field has a value, or needs none. */
export function isGiven(value: ParameterValue | undefined, field: ParameterField): boolean {
  if (field.isVariable) return Boolean(value?.text) || field.fallback !== null;
  return value !== undefined && (value.text !== "" || value.type === "varchar" || value.type === "null");
}

/** Return the value in the form of the API. */
function sent({ text, type }: ParameterValue): unknown {
  switch (type) {
    case "null":
      return null;
    case "auto":
      return plain(text);
    case "boolean":
      return { type, value: /^(true|t|yes|1)$/i.test(text.trim()) };
    case "double":
      return { type, value: NUMBER.test(text.trim()) ? Number(text) : text.trim() };
    case "varchar":
      return { type, value: text };
    default:
      return { type, value: text.trim() };
  }
}

function plain(text: string): unknown {
  const digits = text.trim();
  if (!NUMBER.test(digits)) return text;
  if (/^[+-]?\d+$/.test(digits)) {
    return Number.isSafeInteger(Number(digits)) ? Number(digits) : { type: "decimal", value: digits };
  }
  // JSON numbers with a point are doubles; more digits are kept by a decimal.
  const isExact = digits.replace(/[^\d]/g, "").length <= DIGITS_OF_A_DOUBLE || /e/i.test(digits);
  return isExact ? Number(digits) : { type: "decimal", value: digits };
}

function back(pieces: ReadonlyArray<{ sourceTo: number; textFrom: number; textTo: number }>, offset: number): number {
  let shift = 0;
  for (const piece of pieces) {
    if (offset < piece.textFrom) break;
    if (offset < piece.textTo) return piece.textFrom + shift;
    shift = piece.sourceTo - piece.textTo;
  }
  return offset + shift;
}

function places(text: string, dialect: string): Place[] {
  const variables = [...text.matchAll(VARIABLE)].map((match) => ({
    from: match.index,
    to: match.index + match[0].length,
    field: { name: match[1] ?? "", isVariable: true, fallback: match[2] ?? null },
  }));
  if (variables.length === 0 && !text.includes(":")) return [];
  const markers: Place[] = [];
  const comments: Array<{ from: number; to: number }> = [];
  let skipTo = 0;
  for (const { kind, from, to } of lexemes(text, lexicalRules(dialect))) {
    if (kind === "comment") comments.push({ from, to });
    if (kind !== "other" || text[from] !== ":" || from < skipTo) continue;
    if (text[from + 1] === ":") {
      skipTo = from + 2;
      continue;
    }
    NAME.lastIndex = from + 1;
    const name = NAME.exec(text)?.[0];
    if (name === undefined || WORD_BEFORE.test(text[from - 1] ?? " ")) continue;
    markers.push({ from, to: from + 1 + name.length, field: { name, isVariable: false, fallback: null } });
  }
  const isIn = (some: ReadonlyArray<{ from: number; to: number }>, at: number) =>
    some.some(({ from, to }) => from <= at && at < to);
  return [
    ...variables.filter(({ from }) => !isIn(comments, from)),
    ...markers.filter(({ from }) => !isIn(variables, from)),
  ].sort((one, other) => one.from - other.from);
}
