import { expect, test } from "vitest";
import { errorMark, offsetOf, statementStart } from "./positions.ts";

const marked = (text: string, from: number, line: number, column: number | null) => {
  const mark = errorMark(text, from, line, column);
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
  expect(marked("SELECT *\nFROM itemz WHERE 1", 0, 2, 6)).toBe("itemz");
  expect(marked("SELECT (", 0, 1, 8)).toBe("(");
});

test("an error at the end of the text marks its last character", () => {
  expect(marked("SELECT 1 +", 0, 1, 11)).toBe("+");
});

test("an error without a column marks its line", () => {
  expect(marked("SELECT *\n  FROM itemz  \nWHERE 1", 0, 2, null)).toBe("FROM itemz");
});

test("a place in a statement that is not the first of the text is found", () => {
  const script = "SELECT 1; SELECT 2;\n\n  SELECT nope,\n nope2";
  const from = script.indexOf("SELECT nope");
  expect(marked(script, from, 1, 8)).toBe("nope");
  expect(marked(script, from, 2, 2)).toBe("nope2");
  expect(statementStart(script, { row: 2, column: 0 })).toBe(from);
  expect(statementStart(script, { row: 0, column: 9 })).toBe(script.indexOf("SELECT 2"));
});

test("a place outside of the text marks nothing", () => {
  expect(errorMark("SELECT 1", 0, 3, 1)).toBeNull();
  expect(errorMark("SELECT 1", 0, 0, 1)).toBeNull();
});
