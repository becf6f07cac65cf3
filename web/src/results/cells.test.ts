import { expect, test } from "vitest";
import { linesOf } from "./CellDialog.tsx";
import { previewOf, textOf, toTsv } from "./cells.ts";
import { ScrollMap } from "./scrollMap.ts";
import { commandOf, moved, rectangleOf, START } from "./selection.ts";
import { pageOf } from "./testing.ts";

const NO_KEYS = { shiftKey: false, ctrlKey: false, metaKey: false, altKey: false };
const COLUMNS = pageOf(0, [["a", "b", "c"]], 1).meta;

test("copied cells are fields of a table, and NULL is an empty one", () => {
  const rows = [
    ["x", null, "tab\there"],
    ["9007199254740993", '"q"', { list: [1] }],
  ];
  expect(toTsv(rows, COLUMNS, 0, 2, false)).toBe('x\t\t"tab\there"\n9007199254740993\t"""q"""\t"{""list"":[1]}"');
  expect(toTsv(rows, COLUMNS, 1, 1, true)).toBe('c1\n\n"""q"""');
});

test("a preview is one line of bounded length", () => {
  expect(previewOf("a\r\nb\tc")).toBe("a↵b→c");
  expect(previewOf("x".repeat(1_000_000))).toHaveLength(301);
  expect(previewOf(null)).toBe("NULL");
  expect(textOf({ a: [1, null] }, true)).toBe('{\n  "a": [\n    1,\n    null\n  ]\n}');
});

test("a long text is split without loss, and not within a surrogate pair", () => {
  const text = `${"x".repeat(159)}😀${"y".repeat(400)}`;
  const lines = linesOf(`${text}\n\nend`);
  expect(lines.join("")).toBe(`${text}end`);
  expect(lines[0]).toBe("x".repeat(159));
  expect(lines.slice(-2)).toEqual(["", "end"]);
});

test("keys move the active cell within the rows, and Shift extends the selection", () => {
  const extent = { rows: 100, columns: 5, page: 20 };
  const press = (key: string, more = {}) => ({ key, ...NO_KEYS, ...more });
  const down = moved(START, press("PageDown"), extent);
  expect(down?.active).toEqual({ row: 20, column: 0 });
  const extended = moved(down ?? START, press("End", { shiftKey: true }), extent);
  expect(rectangleOf(extended ?? START)).toEqual({ top: 20, bottom: 20, left: 0, right: 4 });
  expect(moved(START, press("ArrowUp"), extent)?.active).toEqual({ row: 0, column: 0 });
  expect(moved(START, press("End", { ctrlKey: true }), extent)?.active).toEqual({ row: 99, column: 4 });
  expect(moved(START, press("x"), extent)).toBeNull();
});

test("a list higher than the browser permits scrolls to both ends, and by pixels in between", () => {
  const map = new ScrollMap(10_000);
  map.resize(100_000, 500);
  expect(map.height).toBe(10_000);
  expect(map.moved(9500)).toBe(99_500);
  expect(map.moved(9400)).toBe(99_400);
  expect(map.settled()).toBeCloseTo((99_400 / 99_500) * 9500, 3);
  expect(map.moved(0)).toBe(0);
  map.go(2000);
  map.moved(map.settled() ?? 0);
  for (let step = 0; step < 100 && map.offset > 0; step += 1) {
    map.moved(Math.max(0, map.offset + map.shift - 100));
    if (map.isStuck) map.settled();
  }
  expect(map.offset).toBe(0);
});

test("keys that do not move copy, open and resize, also with capital letters", () => {
  const press = (key: string, ...held: Array<"shiftKey" | "ctrlKey" | "altKey">) =>
    commandOf({ key, ...NO_KEYS, ...Object.fromEntries(held.map((name) => [name, true])) });
  expect(press("c", "ctrlKey")).toBe("copy");
  expect(press("C", "ctrlKey")).toBe("copy");
  expect(press("C", "ctrlKey", "shiftKey")).toBe("copy with names");
  expect(press("A", "ctrlKey")).toBe("select all");
  expect(press("Enter")).toBe("open");
  expect(press("ArrowRight", "altKey", "shiftKey")).toBe("wider");
  expect(press("ArrowLeft", "altKey")).toBeNull();
  expect(press("c")).toBeNull();
});
