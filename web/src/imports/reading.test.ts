import { expect, test } from "vitest";
import { type Metadata, readingOf, readingQuery, type Source, withSeparator } from "./reading.ts";

const SOURCE: Source = { importType: "local", path: "upload/x/sales.csv", name: "sales.csv", sizeBytes: 3 };
const TEXT: Metadata = {
  type: "delimiter_format",
  field_separator: ";",
  quote_char: '"',
  record_separator: "\r\n",
  encoding: "windows-1252",
  confidence: 1,
};
const FILE = { file_path: "upload/x/sales.csv", import_type: "local" };

test("what was detected is sent back unchanged", () => {
  expect(readingQuery(SOURCE, readingOf(TEXT))).toEqual({
    ...FILE,
    file_type: "delimiter_format",
    field_separator: ";",
    quote_char: '"',
    record_separator: "\r\n",
    encoding: "windows-1252",
  });
});

test("the first sheet of a workbook is read first, without separators", () => {
  expect(readingQuery(SOURCE, readingOf({ type: "excel", sheet_names: ["Stock", "Notes"] }))).toEqual({
    ...FILE,
    file_type: "excel",
    sheet_name: "Stock",
  });
});

test("a file of records has no form", () => {
  const reading = { ...readingOf({ type: "parquet" }), hasHeader: true, dateFormat: "%d/%m/%Y" };
  expect(readingQuery(SOURCE, reading)).toEqual({ ...FILE, file_type: "parquet" });
});

test("the type of a text follows from its separator", () => {
  const reading = readingOf(TEXT);
  expect(withSeparator(reading, ",").fileType).toBe("csv");
  expect(withSeparator(reading, "\t").fileType).toBe("tsv");
  expect(withSeparator(reading, "||").fileType).toBe("delimiter_format");
});

test("formats, words and skipped lines are sent if they are given and valid", () => {
  const given = {
    dateFormat: "%d.%m.%y",
    numberFormat: "1.234,5",
    nullWords: "NA, -,",
    skipRows: "2",
    hasHeader: false,
  };
  expect(readingQuery(SOURCE, { ...readingOf(TEXT), ...given })).toMatchObject({
    date_format: "%d.%m.%y",
    number_format: "1.234,5",
    null_words: ["NA", "-"],
    skip_rows: 2,
    has_header: false,
  });
  const query = readingQuery(SOURCE, { ...readingOf(TEXT), skipRows: "-1", numberFormat: "x" });
  expect(query).not.toHaveProperty("skip_rows");
  expect(query).not.toHaveProperty("number_format");
});
