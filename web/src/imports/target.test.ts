import { expect, test } from "vitest";
import type { Schemas } from "../api/client.ts";
import { type Metadata, readingOf, type Source } from "./reading.ts";
import { countsOf, rejectedRows } from "./run.ts";
import { createTableBody, type Target, tableNameOf } from "./target.ts";
import { warningTexts } from "./warnings.ts";

const TARGET: Target = { connector: "3", database: "", table: " sales ", ifExists: "replace", badRows: "all" };
const SOURCE: Source = { importType: "remote", path: "/a/sales.parquet", name: "sales.parquet", sizeBytes: null };

test("a table is named after its file", () => {
  expect(tableNameOf("Sales 2024.final.xlsx")).toBe("sales_2024_final");
  expect(tableNameOf("2024-01.csv")).toBe("t_2024_01");
  expect(tableNameOf("Übersicht.csv")).toBe("übersicht");
  expect(tableNameOf("---.csv")).toBe("imported");
});

test("the default database and the default limit of bad rows are left to the server", () => {
  const reading = readingOf({ type: "parquet" });
  const columns = [{ name: "id", type: "INT", source: 1 }];
  const inspected = { source: SOURCE, reading, hasHeader: true };
  const body = createTableBody(inspected, columns, new Map(), TARGET);
  expect(body).toMatchObject({ connector: "3", table: "sales", if_exists: "replace", max_bad_rows: -1 });
  expect(body).not.toHaveProperty("database");
  const few = createTableBody(inspected, columns, new Map(), { ...TARGET, badRows: "few", database: "shop" });
  expect(few.database).toBe("shop");
  expect(few).not.toHaveProperty("max_bad_rows");
});

test("rejected rows are read from the log, and counts from the result", () => {
  expect(rejectedRows(["Read 3 rows from x.csv, 1 of them bad.", "Bad row: record 2, id: x"])).toEqual([
    "record 2, id: x",
  ]);
  expect(countsOf(["3", 2, "1", "db.t"])).toEqual({ read: "3", loaded: "2", rejected: "1" });
  expect(countsOf(undefined)).toBeNull();
});

test("warnings of both calls are shown once, with the first rows", () => {
  const uncertain: Schemas["PreviewWarning"] = { code: "encoding_uncertain", count: 1, rows: [] };
  const metadata: Metadata = {
    type: "csv",
    field_separator: ",",
    quote_char: '"',
    record_separator: "\n",
    encoding: "windows-1252",
    confidence: 0.4,
    warnings: [uncertain],
  };
  const warnings = [uncertain, { code: "long_rows" as const, count: 3, rows: [4, 7] }];
  expect(warningTexts(metadata, { type: "csv", columns: [], preview_data: [], warnings })).toEqual([
    "The encoding is uncertain. Check the letters in the rows, and choose another encoding if they are wrong.",
    "3 rows have more values than the table has columns. (Records 4, 7, …)",
  ]);
});
