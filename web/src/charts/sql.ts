/**
 * Statements of DuckDB that compute a chart from all rows of a stored result, which they read as the table
 * 'result://<operation>' (Contract editor 6.5).
 */

import { isNumeric } from "../results/cells.ts";
import type { Column } from "../results/rows.ts";
import { byValue, type Frame, frameOf, histogramFrame, type Row } from "./frame.ts";
import { BINS, type ChartSpec, MAX_POINTS, MAX_SERIES, seriesLabels } from "./spec.ts";
import { axisKind, numberOf } from "./values.ts";

/** Return the statement whose rows `frameFromSql` makes a chart of. */
export function statementOf(operationId: string, columns: readonly Column[], spec: ChartSpec): string {
  const table = `'result://${operationId}'`;
  const names = uniqueNames(columns.map((column) => column.name)).map(quoted);
  const column = (position: number) => names[position] ?? "NULL";
  if (spec.kind === "histogram") return binned(table, column(spec.y[0] ?? spec.x));
  const x = column(spec.x);
  const y = spec.y.slice(0, MAX_SERIES);
  if (spec.aggregate === "none") {
    const sample = `USING SAMPLE reservoir(${MAX_POINTS} ROWS) REPEATABLE (1)`;
    return `SELECT ${[x, ...y.map((position) => amount(column(position), columns[position]))].join(", ")}\nFROM ${table} ${sample}`;
  }
  const values = y.map((position) => aggregate(spec.aggregate, column(position), columns[position]));
  const results = (values.length ? values : ["count(*)"]).map((value, index) => `${value} AS y${index + 1}`);
  const order = isCategory(columns, spec) ? "y1 DESC NULLS LAST, x" : "x";
  return `SELECT ${x} AS x, ${results.join(", ")}\nFROM ${table}\nGROUP BY ALL\nORDER BY ${order}\nLIMIT ${MAX_POINTS}`;
}

/** Return the points of the rows of `statementOf`, which are computed already but for their place on the axis. */
export function frameFromSql(rows: readonly Row[], columns: readonly Column[], spec: ChartSpec): Frame {
  if (spec.kind === "histogram") return bins(rows);
  const x = columns[spec.x];
  const received = [x, ...spec.y.map((position) => columns[position])].filter((column) => column !== undefined);
  const series = spec.y.length ? spec.y.slice(0, MAX_SERIES).map((_, index) => index + 1) : [1];
  const frame = frameOf(rows, received, { ...spec, x: 0, y: series, aggregate: "none" });
  const labels = seriesLabels(spec, columns);
  const named = frame.series.map((one, index) => ({ ...one, label: labels[index] ?? one.label }));
  const labelled = { ...frame, series: named };
  return spec.aggregate !== "none" && frame.axis === "category" ? byValue(labelled) : labelled;
}

/** Return the column names as DuckDB has them: repeated ones, without regard to case, get `_2`, `_3`, …. */
export function uniqueNames(names: readonly string[]): string[] {
  const taken = new Set(names.map((name) => name.toLowerCase()));
  const used = new Set<string>();
  return names.map((name) => {
    let chosen = name;
    for (let number = 2; isUsed(chosen, number); number += 1) chosen = `${name}_${number}`;
    used.add(chosen.toLowerCase());
    return chosen;
  });

  function isUsed(name: string, number: number): boolean {
    const folded = name.toLowerCase();
    return used.has(folded) || (number > 2 && taken.has(folded));
  }
}

function binned(table: string, column: string): string {
  return `WITH cells AS (SELECT TRY_CAST(${column} AS DOUBLE) AS v FROM ${table}),
ends AS (SELECT min(v) AS low, max(v) AS high, bool_and(v = floor(v)) AS whole FROM cells WHERE isfinite(v)),
bins AS (SELECT CASE WHEN whole AND high - low < ${BINS} THEN low - 0.5 ELSE low END AS start,
  CASE WHEN whole AND high - low < ${BINS} THEN 1 WHEN high > low THEN (high - low) / ${BINS} ELSE 1 END AS width,
  CASE WHEN whole AND high - low < ${BINS} THEN high - low + 1 ELSE ${BINS} END AS bins FROM ends)
SELECT least(floor((v - start) / width), bins - 1) AS bin, count(*) AS y1, start, width, bins
FROM cells, bins WHERE isfinite(v)
GROUP BY ALL
ORDER BY bin`;
}

function bins(rows: readonly Row[]): Frame {
  const [first] = rows;
  const cell = (row: Row | undefined, index: number) => numberOf(row?.[index]) ?? 0;
  const counts = new Map(rows.map((row) => [cell(row, 0), cell(row, 1)]));
  return histogramFrame(counts, { start: cell(first, 2), width: cell(first, 3), count: cell(first, 4) }, 0);
}

function aggregate(name: string, column: string, type: Column | undefined): string {
  if (name === "count") return `count(${column})`;
  return `${name}(${amount(column, type)})`;
}

/** Stored decimals of other engines may be text, which DuckDB does not add up. */
function amount(column: string, type: Column | undefined): string {
  return type && isNumeric(type) ? `TRY_CAST(${column} AS DOUBLE)` : column;
}

function isCategory(columns: readonly Column[], spec: ChartSpec): boolean {
  const column = columns[spec.x];
  return column === undefined || axisKind(column) === "category";
}

function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
