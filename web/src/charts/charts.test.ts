import { describe, expect, test } from "vitest";
import type { Column } from "../results/rows.ts";
import { frameOf, repeats } from "./frame.ts";
import { type ChartSpec, suggest, titleOf } from "./spec.ts";
import { frameFromSql, statementOf, uniqueNames } from "./sql.ts";
import { numberTicks, placeText, timeTicks } from "./ticks.ts";
import { labelOf, numberOf, secondsOf } from "./values.ts";

const column = (name: string, type: Column["type"]): Column => ({ name, type, comment: "", native_type: "" });
const COUNTRY = column("country", "STRING_TYPE");
const AMOUNT = column("amount", "DECIMAL_TYPE");
const DAY = column("day", "DATE_TYPE");
const SALES = [
  ["PT", "10.50"],
  ["DE", "7.25"],
  ["PT", "1.50"],
  [null, "3"],
  ["DE", null],
];
const spec = (changes: Partial<ChartSpec>): ChartSpec => ({ kind: "bar", x: 0, y: [1], aggregate: "sum", ...changes });

describe("cells", () => {
  test("numbers come from JSON numbers, digits as text and booleans; others are missing", () => {
    expect([1.5, "12.50", true, "", null, "NaN", "x"].map(numberOf)).toEqual([1.5, 12.5, 1, null, null, null, null]);
  });

  test("times without a zone are UTC, and the zone of others counts", () => {
    expect(secondsOf("1970-01-02")).toBe(86_400);
    expect(secondsOf("1970-01-01 00:00:01.5")).toBe(1.5);
    expect(secondsOf("1970-01-01 02:00:00+02:00")).toBe(0);
    expect(secondsOf("1970-01-01 00:00:00.000 UTC")).toBe(0);
    expect(secondsOf("infinity")).toBeNull();
  });

  test("NULL, the empty text and the text NULL in quotes have labels of their own", () => {
    expect([null, "", { a: 1 }].map(labelOf)).toEqual(["NULL", "(empty)", '{"a":1}']);
  });
});

describe("groups", () => {
  test("sums by category come with the largest first", () => {
    const frame = frameOf(SALES, [COUNTRY, AMOUNT], spec({}));
    expect(frame.labels).toEqual(["PT", "DE", "NULL"]);
    expect(frame.series).toEqual([{ label: "sum(amount)", values: [12, 7.25, 3] }]);
    expect(frame.x).toEqual([0, 1, 2]);
  });

  test("averages, extremes and counts leave NULL out", () => {
    const values = (aggregate: ChartSpec["aggregate"]) => {
      const frame = frameOf(SALES, [COUNTRY, AMOUNT], spec({ aggregate }));
      return Object.fromEntries(frame.labels.map((label, index) => [label, frame.series[0]?.values[index]]));
    };
    expect(values("avg")).toEqual({ PT: 6, DE: 7.25, NULL: 3 });
    expect(values("min")).toEqual({ PT: 1.5, DE: 7.25, NULL: 3 });
    expect(values("max")).toEqual({ PT: 10.5, DE: 7.25, NULL: 3 });
    expect(values("count")).toEqual({ PT: 2, DE: 1, NULL: 1 });
  });

  test("without a column of amounts, rows are counted", () => {
    const frame = frameOf(SALES, [COUNTRY, AMOUNT], spec({ y: [], aggregate: "count" }));
    expect(frame.series).toEqual([{ label: "rows", values: [2, 2, 1] }]);
  });

  test("single rows keep their order on categories and are sorted on times", () => {
    const byCountry = frameOf(SALES, [COUNTRY, AMOUNT], spec({ aggregate: "none" }));
    expect(byCountry.x).toEqual([0, 0, 1, 1, 2]);
    const rows = [
      ["2026-01-03", 3],
      ["2026-01-01", 1],
      [null, 9],
    ];
    const byDay = frameOf(rows, [DAY, AMOUNT], spec({ aggregate: "none", kind: "line" }));
    expect(byDay.series[0]?.values).toEqual([1, 3]);
    expect(byDay.step).toBe(2 * 86_400);
    expect(byDay.skipped).toBe(1);
  });

  test("a repeated x is noticed", () => {
    expect(repeats(SALES, 0)).toBe(true);
    expect(repeats([["a"], ["b"], [null], [""]], 0)).toBe(false);
  });
});

describe("histograms", () => {
  const histogram = (values: unknown[]) =>
    frameOf(
      values.map((value) => [value]),
      [AMOUNT],
      spec({ kind: "histogram", x: 0, y: [0] }),
    );

  test("few whole numbers have a bin each", () => {
    const frame = histogram([1, 2, 2, 5, null]);
    expect(frame.x).toEqual([1, 2, 3, 4, 5]);
    expect(frame.series[0]?.values).toEqual([1, 2, 0, 0, 1]);
    expect(frame.skipped).toBe(1);
  });

  test("the largest value belongs to the last bin, and every row to one", () => {
    const frame = histogram([0, 0.5, 15, 30]);
    expect(frame.x.length).toBe(30);
    expect(frame.series[0]?.values.at(-1)).toBe(1);
    expect(frame.series[0]?.values.reduce((sum, one) => (sum ?? 0) + (one ?? 0), 0)).toBe(4);
  });

  test("no values make no bins, and one value makes one", () => {
    expect(histogram([null, "x"]).x).toEqual([]);
    expect(histogram([7, 7]).series[0]?.values).toEqual([2]);
  });
});

describe("first choice", () => {
  test("dates become a line, texts bars, numbers points, one number a histogram", () => {
    expect(suggest([column("id", "INT_TYPE"), DAY, AMOUNT])).toMatchObject({ kind: "line", x: 1, y: [2] });
    expect(suggest([COUNTRY, column("id", "INT_TYPE"), AMOUNT])).toMatchObject({ kind: "bar", x: 0, y: [2] });
    expect(suggest([AMOUNT, AMOUNT])).toMatchObject({ kind: "scatter", x: 0, y: [1] });
    expect(suggest([AMOUNT])).toMatchObject({ kind: "histogram", y: [0] });
    expect(suggest([COUNTRY])).toMatchObject({ kind: "bar", y: [], aggregate: "count" });
  });

  test("the title says what is drawn", () => {
    expect(titleOf(spec({}), [COUNTRY, AMOUNT])).toBe("sum(amount) by country");
  });
});

describe("statements over all rows", () => {
  const id = "0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10";

  test("names are quoted, and repeated ones are those of DuckDB", () => {
    const columns = [column('co"untry', "STRING_TYPE"), AMOUNT, column("AMOUNT", "INT_TYPE")];
    expect(statementOf(id, columns, spec({ y: [1, 2] }))).toBe(
      `SELECT "co""untry" AS x, sum(TRY_CAST("amount" AS DOUBLE)) AS y1, sum(TRY_CAST("AMOUNT_2" AS DOUBLE)) AS y2
FROM 'result://${id}'
GROUP BY ALL
ORDER BY y1 DESC NULLS LAST, x
LIMIT 100000`,
    );
    expect(uniqueNames(["a", "A", "a_2", "b"])).toEqual(["a", "A_3", "a_2", "b"]);
  });

  test("single rows are a sample of at most 100,000", () => {
    expect(statementOf(id, [COUNTRY, AMOUNT], spec({ aggregate: "none" }))).toContain("reservoir(100000 ROWS)");
  });

  test("computed rows keep their values and get the names of the series", () => {
    const rows = [
      ["PT", 12],
      ["DE", 7],
    ];
    const frame = frameFromSql(rows, [COUNTRY, AMOUNT], spec({}));
    expect(frame.labels).toEqual(["PT", "DE"]);
    expect(frame.series).toEqual([{ label: "sum(amount)", values: [12, 7] }]);
  });

  test("bins without rows are zero", () => {
    const rows = [
      [0, "3", 0.5, 1, 4],
      [3, "1", 0.5, 1, 4],
    ];
    const frame = frameFromSql(rows, [AMOUNT], spec({ kind: "histogram", x: 0, y: [0] }));
    expect(frame.x).toEqual([1, 2, 3, 4]);
    expect(frame.series[0]?.values).toEqual([3, 0, 0, 1]);
  });
});

describe("ticks", () => {
  test("numbers from a million on are short and still differ", () => {
    expect(numberTicks([0, 0.5, 1], 0.5)).toEqual(["0", "0.5", "1"]);
    expect(numberTicks([9000, 10_000], 1000)).toEqual(["9,000", "10,000"]);
    expect(numberTicks([1_000_000, 1_010_000], 10_000)).toEqual(["1M", "1.01M"]);
  });

  test("times name the day or year where it changes", () => {
    const day = 86_400;
    expect(timeTicks([0, day, 365 * day], day)).toEqual(["01-01\n1970", "01-02", "01-01\n1971"]);
    expect(timeTicks([day - 3600, day], 3600)).toEqual(["23:00\n1970-01-01", "00:00\n1970-01-02"]);
    expect(timeTicks([0, 31 * day], 28 * day)).toEqual(["1970-01", "1970-02"]);
  });

  test("a point is named by its category, its time or its bin", () => {
    const frame = { axis: "category" as const, x: [0], labels: ["PT"], series: [], step: 1, skipped: 0 };
    expect(placeText(frame, 0, false)).toBe("PT");
    expect(placeText({ ...frame, axis: "time", x: [3661] }, 0, false)).toBe("1970-01-01 01:01:01");
    expect(placeText({ ...frame, axis: "number", x: [2.5], step: 0.5 }, 0, true)).toBe("2.25 – 2.75");
    expect(placeText({ ...frame, axis: "number", x: [2], step: 1 }, 0, true)).toBe("2");
  });
});
