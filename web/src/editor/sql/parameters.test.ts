// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this is how variables of Hue are written
import { describe, expect, test } from "vitest";
import { bind, parameterFields } from "./parameters.ts";

const names = (text: string, dialect = "duckdb") => parameterFields(text, dialect).map(({ name }) => name);

describe("markers are found where the server finds them (docs/clients.md)", () => {
  test.each([
    ["SELECT :a, :b_2 WHERE x = :a", ["a", "b_2"]],
    ["SELECT x::int, a[1:n], {'a':b}, f(x):y", []],
    ["SELECT a[:n]", ["n"]],
    ["SELECT ':a', \":b\", $$:c$$ -- :d\n, /* :e */ :f", ["f"]],
    ["SELECT 1 WHERE t > :from AND t <= :to", ["from", "to"]],
  ])("%s", (text, expected) => {
    expect(names(text)).toEqual(expected);
  });
});

test("variables are found in quotes too, but not in comments", () => {
  expect(parameterFields("SELECT '${day=2026-01-01}', ${n} -- ${no}", "hive")).toEqual([
    { name: "day", isVariable: true, fallback: "2026-01-01" },
    { name: "n", isVariable: true, fallback: null },
  ]);
  expect(names("SELECT ${hiveconf:x}, ${system:user}", "hive")).toEqual([]);
});

test("a variable is replaced in the text, and a marker gets a value", () => {
  const bound = bind("SELECT * FROM ${table} WHERE n = :n AND day = '${day=today}'", "hive", {
    table: { text: "orders", type: "auto" },
    n: { text: "12", type: "auto" },
  });
  expect(bound).toMatchObject({
    text: "SELECT * FROM orders WHERE n = :n AND day = 'today'",
    values: { n: 12 },
    missing: [],
  });
});

test("offsets of the sent text lead back to the source", () => {
  const source = "SELECT ${a} FROM ${long_name} WHERE x";
  const bound = bind(source, "hive", { a: { text: "count(*)", type: "auto" }, long_name: { text: "t", type: "auto" } });
  expect(bound.text).toBe("SELECT count(*) FROM t WHERE x");
  const back = (word: string) => source.slice(bound.toSource(bound.text.indexOf(word)));
  expect(back("FROM")).toBe("FROM ${long_name} WHERE x");
  expect(back("WHERE")).toBe("WHERE x");
  expect(back("t WHERE")).toBe("${long_name} WHERE x");
  expect(back("(*)")).toBe("${a} FROM ${long_name} WHERE x");
});

test("a field without a value is missing, unless it is a text or NULL", () => {
  const text = "SELECT :a, :b, :c, ${d}";
  const given = {
    a: { text: "", type: "varchar" },
    b: { text: "", type: "null" },
    c: { text: "", type: "auto" },
  } as const;
  expect(bind(text, "duckdb", given)).toMatchObject({ missing: ["c", "d"] });
  expect(bind("SELECT 1", "duckdb", {})).toMatchObject({ missing: [], values: null });
});

describe("values keep all their digits", () => {
  test.each([
    ["auto", "12", 12],
    ["auto", "-1.5", -1.5],
    ["auto", "12345678901234567890", { type: "decimal", value: "12345678901234567890" }],
    ["auto", "0.12345678901234567890", { type: "decimal", value: "0.12345678901234567890" }],
    ["auto", "O'Brien", "O'Brien"],
    ["auto", "2026-01-31", "2026-01-31"],
    ["varchar", "12", { type: "varchar", value: "12" }],
    ["bigint", " 12 ", { type: "bigint", value: "12" }],
    ["double", "NaN", { type: "double", value: "NaN" }],
    ["boolean", "true", { type: "boolean", value: true }],
    ["boolean", "false", { type: "boolean", value: false }],
    ["null", "", null],
  ] as const)("%s %s", (type, text, expected) => {
    expect(bind("SELECT :x", "duckdb", { x: { text, type } }).values).toEqual({ x: expected });
  });
});
