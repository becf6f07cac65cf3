import { expect, test } from "vitest";
import { changed, columnProblems, type Edits, editedColumn, importColumns, withoutTypes } from "./columns.ts";

const COLUMNS = [
  { name: "id", type: "INT", source: 1 },
  { name: "price", type: "DECIMAL", source: 2, precision: 20, scale: 4, format: "1.234,5" },
  { name: "day", type: "DATE", source: 3, format: "%d/%m/%Y", null_words: ["--"] },
];
const NONE: Edits = new Map();

test("columns that were not changed are sent as the preview has them", () => {
  expect(importColumns(COLUMNS, NONE)).toEqual([
    { source: 1, name: "id", type: "INT" },
    { source: 2, name: "price", type: "DECIMAL", precision: 20, scale: 4, format: "1.234,5" },
    { source: 3, name: "day", type: "DATE", format: "%d/%m/%Y", null_words: ["--"] },
  ]);
});

test("a chosen type takes its size with it, and drops the format and the words of the detected type", () => {
  const edits = changed(changed(NONE, 1, { type: "NUMERIC", size: "12, 2" }), 3, { type: "TEXT" });
  expect(importColumns(COLUMNS, edits)).toMatchObject([
    { source: 1, type: "NUMERIC(12, 2)" },
    { source: 2 },
    { source: 3, type: "TEXT" },
  ]);
  expect(importColumns(COLUMNS, edits)[2]).not.toHaveProperty("format");
  expect(importColumns(COLUMNS, edits)[2]).not.toHaveProperty("null_words");
});

test("a decimal type always has a size", () => {
  expect(editedColumn(COLUMNS[0] ?? fail(), 0, changed(NONE, 1, { type: "DECIMAL" })).size).toBe("38,10");
  expect(editedColumn(COLUMNS[1] ?? fail(), 1, changed(NONE, 2, { type: "NUMERIC" })).size).toBe("20,4");
});

test("a size of a type without one is not sent", () => {
  expect(importColumns(COLUMNS.slice(0, 1), changed(NONE, 1, { type: "BIGINT", size: "3" }))).toMatchObject([
    { type: "BIGINT" },
  ]);
});

test("columns that are left out are not sent, and the others keep their positions in the file", () => {
  const edits = changed(changed(NONE, 1, { isLeftOut: true }), 3, { name: "Tag", isRequired: true });
  expect(importColumns(COLUMNS, edits)).toMatchObject([{ source: 2 }, { source: 3, name: "Tag", nullable: false }]);
});

test("words for NULL that were removed are sent as an empty list", () => {
  expect(importColumns(COLUMNS, changed(NONE, 3, { nullWords: " , " }))[2]?.null_words).toEqual([]);
});

test("another dialect keeps names and choices, and drops types", () => {
  const edits = changed(NONE, 1, { type: "TEXT", size: "3", name: "key", isRequired: true });
  expect(withoutTypes(edits).get(1)).toEqual({ name: "key", isRequired: true });
});

test("names must be there and differ by more than case; columns that are left out do not count", () => {
  const twice = changed(changed(NONE, 2, { name: "ID" }), 3, { name: " " });
  expect([...columnProblems(COLUMNS, twice)]).toEqual([
    [2, "Another column has this name."],
    [3, "Enter a name."],
  ]);
  expect(columnProblems(COLUMNS, changed(changed(twice, 2, { isLeftOut: true }), 3, { isLeftOut: true })).size).toBe(0);
});

test("a table has at least one column", () => {
  const none = [1, 2, 3].reduce<Edits>((edits, source) => changed(edits, source, { isLeftOut: true }), NONE);
  expect(columnProblems(COLUMNS, none).get(null)).toBe("Select at least one column.");
});

function fail(): never {
  throw new Error("no such column");
}
