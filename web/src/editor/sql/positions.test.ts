import { expect, test } from "vitest";
import { errorMark, offsetOf } from "./positions.ts";

const marked = (text: string, line: number, column: number | null) => {
  const mark = errorMark(text, line, column);
  return mark && text.slice(mark.from, mark.to);
};

test("columns count code points, and lines end at each kind of line break", () => {
  const text = "a😀b\r\nc\rd\ne";
  expect(offsetOf(text, { row: 0, column: 2 })).toBe(text.indexOf("b"));
  expect(offsetOf(text, { row: 1, column: 0 })).toBe(text.indexOf("c"));
  expect(offsetOf(text, { row: 2, column: 0 })).toBe(text.indexOf("d"));
  expect(offsetOf(text, { row: 3, column: 9 })).toBe(text.length);
  expect(offsetOf(text, { row: 4, column: 0 })).toBeNull();
});

test("the word at the place is marked", () => {
  expect(marked("SELECT *\nFROM itemz WHERE 1", 2, 6)).toBe("itemz");
  expect(marked("SELECT (", 1, 8)).toBe("(");
});

test("an error at the end of the text marks its last character", () => {
  expect(marked("SELECT 1 +", 1, 11)).toBe("+");
});

test("an error without a column marks its line", () => {
  expect(marked("SELECT *\n  FROM itemz  \nWHERE 1", 2, null)).toBe("FROM itemz");
});

test("a place outside of the text marks nothing", () => {
  expect(errorMark("SELECT 1", 3, 1)).toBeNull();
  expect(errorMark("SELECT 1", 0, 1)).toBeNull();
});
