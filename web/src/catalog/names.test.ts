import { expect, test } from "vitest";
import { databaseOfSegment, qualified, quoted, selectStatement, tableAddress } from "./names.ts";

const duckdb = { dialect: "duckdb", dialect_properties: { sql_identifier_quote: '"' } };
const postgresql = { ...duckdb, dialect: "postgresql" };
const hive = { dialect: "hive", dialect_properties: { sql_identifier_quote: "`" } };
const trino = { dialect: "trino", dialect_properties: { sql_identifier_quote: '"' } };
const phoenix = { dialect: "phoenix", dialect_properties: { sql_identifier_quote: '"' } };

test("names are quoted if the dialect could read them as something else", () => {
  expect(quoted(duckdb, "orders")).toBe("orders");
  expect(quoted(duckdb, "Orders")).toBe("Orders");
  expect(quoted(postgresql, "Orders")).toBe('"Orders"');
  expect(quoted(duckdb, "select")).toBe('"select"');
  expect(quoted(duckdb, 'a"b')).toBe('"a""b"');
  expect(quoted(hive, "1`x")).toBe("`1``x`");
  expect(quoted(phoenix, "ORDERS")).toBe("ORDERS");
  expect(quoted(phoenix, "orders")).toBe('"orders"');
});

test("the parts of a database are quoted one by one where it is a catalog and a schema", () => {
  expect(qualified(trino, "hive.web", "orders")).toBe("hive.web.orders");
  expect(qualified(trino, '"a.b"."c""d"', "t")).toBe('"a.b"."c""d".t');
  expect(qualified(duckdb, "a.b", "t")).toBe('"a.b".t');
  expect(qualified(phoenix, "", "T")).toBe("T");
});

test("the statement for the first rows has the limit of the dialect", () => {
  expect(selectStatement(hive, "shop", "orders")).toBe("SELECT *\nFROM shop.orders\nLIMIT 100;");
  expect(selectStatement({ ...duckdb, dialect: "oracle" }, "shop", "orders")).toContain("FETCH FIRST 100 ROWS ONLY");
});

test("each name is one segment of the address, also the empty one", () => {
  expect(tableAddress("7", "a/b", "c?#%")).toBe("/tables/7/a%2Fb/c%3F%23%25");
  for (const name of ["", "~", "~~", "a", "a~"]) {
    const segment = tableAddress("7", name, "t").split("/")[3] ?? "";
    expect(segment).not.toBe("");
    expect(databaseOfSegment(decodeURIComponent(segment))).toBe(name);
  }
});
