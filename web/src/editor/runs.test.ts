import { expect, test } from "vitest";
import { markOf, targetAt, wholeOf } from "./runs.ts";

const SCRIPT = "SELECT 1;\n\n  SELECT nope\n  FROM t; SELECT 3";

function marked(text: string, run: { from: number; source: string }, error: Parameters<typeof markOf>[2]) {
  const content = {
    text,
    run: { operationId: "x", ...run },
    parameters: { c: { text: "count(*)", type: "auto" } },
  } as const;
  const mark = markOf(content, "duckdb", error);
  return mark && text.slice(mark.from, mark.to);
}

test("the selection runs, else the statement at the cursor", () => {
  const text = (target: ReturnType<typeof targetAt>) => target && SCRIPT.slice(target.from, target.to);
  expect(text(targetAt(SCRIPT, "duckdb", { from: 14, to: 14 }))).toBe("SELECT nope\n  FROM t");
  expect(text(targetAt(SCRIPT, "duckdb", { from: 0, to: 6 }))).toBe("SELECT");
  expect(targetAt(SCRIPT, "duckdb", { from: 0, to: 30 })).toMatchObject({ from: 0, isScript: true });
  expect(targetAt("-- none", "duckdb", { from: 3, to: 3 })).toBeNull();
  expect(wholeOf(`${SCRIPT};`, "duckdb")).toEqual({ from: 0, to: SCRIPT.length, isScript: true });
});

test("an error of a statement that is not the first of the text is marked there", () => {
  const from = SCRIPT.indexOf("SELECT nope");
  const run = { from, source: "SELECT nope\n  FROM t" };
  expect(marked(SCRIPT, run, { line: 1, column: 8 })).toBe("nope");
  expect(marked(SCRIPT, run, { line: 2, column: 8 })).toBe("t");
});

test("an error of a script is marked at its place in the script", () => {
  const run = { from: 0, source: SCRIPT };
  expect(marked(SCRIPT, run, { line: 3, column: 10 })).toBe("nope");
  expect(marked(SCRIPT, run, { line: 4, column: 18 })).toBe("3");
});

test("text before the statement may have changed, the statement itself not", () => {
  const run = { from: 0, source: "SELECT nope" };
  expect(marked("-- new\nSELECT nope", run, { line: 1, column: 8 })).toBe("nope");
  expect(marked("SELECT nope2", { from: 0, source: "SELECT nope;" }, { line: 1, column: 8 })).toBeNull();
});

test("an error behind a variable is marked in the text, not in what was sent", () => {
  // biome-ignore lint/suspicious/noTemplateCurlyInString: this is how variables of Hue are written
  const source = "SELECT ${c} FROM nope";
  expect(marked(source, { from: 0, source }, { line: 1, column: 22 })).toBe("nope");
});
