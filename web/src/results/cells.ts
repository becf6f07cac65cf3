/** How cells are shown: as one line in the grid, in full in the dialog, and as fields of a table that is copied. */
import type { Column, Row } from "./rows.ts";

/** Longer texts are cut in the grid; the dialog shows them in full. */
const PREVIEW_CHARACTERS = 300;
const NUMERIC = new Set([
  "TINYINT_TYPE",
  "SMALLINT_TYPE",
  "INT_TYPE",
  "BIGINT_TYPE",
  "FLOAT_TYPE",
  "DOUBLE_TYPE",
  "DECIMAL_TYPE",
]);

export function isNumeric({ type }: Pick<Column, "type">): boolean {
  return NUMERIC.has(type);
}

/** The whole value as text. Arrays and objects are JSON; `pretty` puts each member on a line of its own. */
export function textOf(value: unknown, pretty = false): string {
  if (value === null || value === undefined) return "NULL";
  if (typeof value === "string") return value;
  if (typeof value === "object") return JSON.stringify(value, null, pretty ? 2 : 0);
  return String(value);
}

/** The beginning of a value on one line. */
export function previewOf(value: unknown): string {
  const text = textOf(value);
  const start = text.length > PREVIEW_CHARACTERS ? `${text.slice(0, PREVIEW_CHARACTERS)}…` : text;
  return start.replaceAll(/\r\n|[\n\r]/g, "↵").replaceAll("\t", "→");
}

/** Rows as tab-separated values, which spreadsheets accept from the clipboard. NULL is an empty field. */
export function toTsv(rows: readonly Row[], columns: readonly Column[], first: number, last: number, header: boolean) {
  const lines = rows.map((row) =>
    row
      .slice(first, last + 1)
      .map(field)
      .join("\t"),
  );
  const names = columns.slice(first, last + 1).map(({ name }) => field(name));
  return header ? [names.join("\t"), ...lines].join("\n") : lines.join("\n");
}

function field(value: unknown): string {
  if (value === null || value === undefined) return "";
  const text = textOf(value);
  return /[\t\n\r"]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A width for each column, from its name and the first rows. */
export function columnWidths(columns: readonly Column[], rows: readonly Row[]): number[] {
  return columns.map((column, index) => {
    const texts = rows.map((row) => previewOf(row[index]).length);
    const characters = Math.max(column.name.length + 1, column.native_type.length, ...texts);
    return Math.round(Math.min(WIDTH.max, Math.max(WIDTH.min, characters * WIDTH.perCharacter + WIDTH.padding)));
  });
}

export const WIDTH = { min: 72, max: 360, perCharacter: 8.4, padding: 24, least: 40 };
