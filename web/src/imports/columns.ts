/** The columns of the new table: those of the preview, with the changes that the user made (Contract importer 13). */
import type { Schemas } from "../api/client.ts";
import { nullWordsOf, type PreviewColumn } from "./reading.ts";

type ImportColumn = Schemas["ImportColumn"];

/** What the user changed in a column. Absent members stay as in the preview. */
export interface ColumnEdit {
  isLeftOut?: boolean;
  name?: string;
  /** A type of the dialect, without its size. */
  type?: string;
  /** What stands in parentheses after the type: `10,2` or `20`. */
  size?: string;
  format?: string;
  /** Words with commas between them. */
  nullWords?: string;
  isRequired?: boolean;
}

/** The changes by the position of the column in the file, from 1. */
export type Edits = ReadonlyMap<number, ColumnEdit>;

/** A column as it is shown and sent: the preview with the changes. */
export interface EditedColumn {
  source: number;
  isLeftOut: boolean;
  name: string;
  type: string;
  size: string;
  format: string;
  nullWords: string;
  isRequired: boolean;
}

const DECIMALS = new Set(["DECIMAL", "NUMERIC", "DEC"]);
const SIZED_TEXTS = new Set(["VARCHAR", "CHARACTER VARYING"]);
const NUMBERS = /INT|DECIMAL|NUMERIC|DOUBLE|FLOAT|REAL|LONG/;
/** The size of a decimal column that the user chose and that the preview does not show as a decimal. */
const USUAL_DECIMAL = "38,10";

export function isDecimal(type: string): boolean {
  return DECIMALS.has(type.toUpperCase());
}

/** Return whether a size may follow the type. */
export function hasSize(type: string): boolean {
  return isDecimal(type) || SIZED_TEXTS.has(type.toUpperCase());
}

export function isNumeric(type: string): boolean {
  return NUMBERS.test(type.toUpperCase());
}

/** Return the position of a column in the file, from 1. `index` counts the columns of the preview from 0. */
export function sourceOf(column: PreviewColumn, index: number): number {
  return column.source ?? index + 1;
}

export function editedColumn(column: PreviewColumn, index: number, edits: Edits): EditedColumn {
  const source = sourceOf(column, index);
  const edit = edits.get(source) ?? {};
  const type = edit.type ?? column.type;
  return {
    source,
    isLeftOut: edit.isLeftOut ?? false,
    name: edit.name ?? column.name,
    type,
    size: edit.size ?? (edit.type === undefined ? sizeOf(column) : usualSize(column, type)),
    format: edit.format ?? (edit.type === undefined ? (column.format ?? "") : ""),
    nullWords: edit.nullWords ?? (edit.type === undefined ? (column.null_words ?? []).join(", ") : ""),
    isRequired: edit.isRequired ?? false,
  };
}

/** Return the changes with another change of one column. */
export function changed(edits: Edits, source: number, change: ColumnEdit): Edits {
  return new Map(edits).set(source, { ...edits.get(source), ...change });
}

/** Return the changes that hold for another SQL dialect: all but the types, which are names of the dialect. */
export function withoutTypes(edits: Edits): Edits {
  return new Map([...edits].map(([source, { type: _type, size: _size, ...edit }]) => [source, edit]));
}

/** Return the columns to send, in the order of the file. What was not changed is sent as the preview has it. */
export function importColumns(columns: readonly PreviewColumn[], edits: Edits): ImportColumn[] {
  return columns.flatMap((column, index) => {
    const edit = edits.get(sourceOf(column, index)) ?? {};
    return edit.isLeftOut ? [] : [importColumn(column, index, edits)];
  });
}

function importColumn(column: PreviewColumn, index: number, edits: Edits): ImportColumn {
  const edited = editedColumn(column, index, edits);
  const edit = edits.get(edited.source) ?? {};
  const sent: ImportColumn = { source: edited.source, name: edited.name };
  if (edit.type === undefined && edit.size === undefined) {
    sent.type = column.type;
    if (column.precision !== undefined) sent.precision = column.precision;
    if (column.scale !== undefined) sent.scale = column.scale;
  } else {
    const size = edited.size.trim();
    sent.type = size !== "" && hasSize(edited.type) ? `${edited.type}(${size})` : edited.type;
  }
  if (edited.format !== "") sent.format = edited.format;
  const words = nullWordsOf(edited.nullWords);
  // Words that the user removed are sent as an empty list: otherwise the detected ones would apply.
  if (words.length > 0 || edit.nullWords !== undefined) sent.null_words = words;
  if (edited.isRequired) sent.nullable = false;
  return sent;
}

/** Return what is wrong with the columns, by their position in the file; null names what concerns all of them. */
export function columnProblems(columns: readonly PreviewColumn[], edits: Edits): Map<number | null, string> {
  const problems = new Map<number | null, string>();
  const kept = columns.map((column, index) => editedColumn(column, index, edits)).filter((one) => !one.isLeftOut);
  if (kept.length === 0) problems.set(null, "Select at least one column.");
  const names = new Set<string>();
  for (const column of kept) {
    // Names that differ in case only are the same to most databases.
    const name = column.name.trim().toLowerCase();
    if (name === "") problems.set(column.source, "Enter a name.");
    else if (names.has(name)) problems.set(column.source, "Another column has this name.");
    names.add(name);
  }
  return problems;
}

function sizeOf({ precision, scale }: PreviewColumn): string {
  return precision === undefined ? "" : `${precision},${scale ?? 0}`;
}

function usualSize(column: PreviewColumn, type: string): string {
  return isDecimal(type) ? sizeOf(column) || USUAL_DECIMAL : "";
}
