import { describe, expect, test } from "vitest";
import { nameContext } from "./context.ts";

function contextOf(marked: string, dialect = "duckdb") {
  return nameContext(marked.replace("|", ""), marked.indexOf("|"), dialect);
}

describe("names that fit at the cursor", () => {
  test.each([
    ["SELECT * FROM |", "table"],
    ["SELECT * FROM ord|", "table"],
    ["SELECT * FROM orders, cu|", "table"],
    ["SELECT * FROM orders JOIN cu|", "table"],
    ["SELECT * FROM orders o |", "other"],
    ["SELECT na|", "column"],
    ["SELECT na| FROM orders", "column"],
    ["SELECT * FROM orders WHERE |", "column"],
    ["SELECT * FROM orders o JOIN customers c ON o.id = c|", "column"],
    ["SELECT * FROM orders JOIN customers USING (|", "column"],
    ["SELECT count(| FROM orders", "column"],
    ["INSERT INTO orders (|", "column"],
    ["SELECT * FROM (SELECT |", "column"],
    ["SELECT * FROM (SELECT 1) x WHERE |", "column"],
    ["SELECT name AS na|", "other"],
    ["SEL|", "other"],
  ])("%s", (marked, kind) => {
    expect(contextOf(marked)?.kind).toBe(kind);
  });

  test.each(["SELECT :na|", "SELECT 'a|b'", "SELECT 'a|", "SELECT 1 -- fr|", "SELECT /* fr| */ 1"])(
    "none in %s",
    (marked) => {
      expect(contextOf(marked)).toBeNull();
    },
  );
});

test("the names before the dot are the path", () => {
  expect(contextOf("SELECT * FROM shop.ord|")).toMatchObject({ path: ["shop"], word: "ord", from: 19 });
  expect(contextOf('SELECT "my shop".o.| FROM t')).toMatchObject({ path: ["my shop", "o"], word: "" });
});

test("tables are known by alias, also those after the cursor", () => {
  const marked = 'SELECT o.| FROM shop.orders AS o, "Cust" c LEFT JOIN items USING (id) WHERE 1 = 1';
  expect(contextOf(marked)?.tables).toEqual([
    { path: ["shop", "orders"], alias: "o" },
    { path: ["Cust"], alias: "c" },
    { path: ["items"], alias: null },
  ]);
});

test("a name that is typed is no table", () => {
  expect(contextOf("SELECT * FROM ord|")?.tables).toEqual([]);
});

test("names of WITH are tables", () => {
  expect(contextOf("WITH a AS (SELECT 1), b AS (SELECT 2) SELECT * FROM |")?.withNames).toEqual(["a", "b"]);
});

test("an open quote begins a name", () => {
  expect(contextOf('SELECT * FROM "Ord|')).toMatchObject({ kind: "table", word: "Ord", hasQuote: true, from: 14 });
  expect(contextOf("SELECT * FROM `Ord|", "hive")).toMatchObject({ kind: "table", word: "Ord", hasQuote: true });
});
