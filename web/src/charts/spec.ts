/** What the user has chosen to draw, and what a result suggests. */

import { isNumeric } from "../results/cells.ts";
import type { Column } from "../results/rows.ts";
import { axisKind } from "./values.ts";

export const KINDS = ["line", "bar", "area", "scatter", "histogram"] as const;
export const AGGREGATES = ["none", "sum", "count", "avg", "min", "max"] as const;
export type Kind = (typeof KINDS)[number];
type Aggregate = (typeof AGGREGATES)[number];

export interface ChartSpec {
  kind: Kind;
  /** Position of the column of the x axis; of a histogram it is not used. */
  x: number;
  /** Positions of the columns that become series; without any, only rows can be counted. */
  y: readonly number[];
  aggregate: Aggregate;
}

export const BINS = 30;
/** More points than this are not drawn; of more rows a random sample is. */
export const MAX_POINTS = 100_000;
/** As many series as there are colors. */
export const MAX_SERIES = 6;

/** Return the first chart of a result: its numbers over its first date, or else over its first text. */
export function suggest(columns: readonly Column[]): ChartSpec {
  const positions = columns.map((_, position) => position);
  const kindOf = (position: number) => axisKind(columns[position] ?? unknownColumn);
  const numbers = positions.filter((position) => kindOf(position) === "number");
  const x =
    positions.find((position) => kindOf(position) === "time") ??
    positions.find((position) => kindOf(position) === "category") ??
    (numbers.length > 1 ? numbers[0] : undefined) ??
    0;
  const measures = numbers.filter((position) => position !== x);
  const y = measures.find((position) => !isKey(columns[position])) ?? measures[0];
  if (y === undefined) {
    const only = columns[x];
    const isNumber = only !== undefined && isNumeric(only);
    return { kind: isNumber ? "histogram" : "bar", x, y: isNumber ? [x] : [], aggregate: isNumber ? "none" : "count" };
  }
  const kind = { time: "line", category: "bar", number: "scatter" } as const;
  return { kind: kind[kindOf(x)], x, y: [y], aggregate: "none" };
}

/** Return the name of what is drawn, for the heading, screen readers and the file of the picture. */
export function titleOf(spec: ChartSpec, columns: readonly Column[]): string {
  const name = (position: number) => columns[position]?.name ?? "";
  if (spec.kind === "histogram") return `Rows by ${name(spec.y[0] ?? spec.x)}`;
  return `${seriesLabels(spec, columns).join(", ")} by ${name(spec.x)}`;
}

/** Return the names of the series, in order. */
export function seriesLabels(spec: ChartSpec, columns: readonly Column[]): string[] {
  if (spec.kind === "histogram" || spec.y.length === 0) return ["rows"];
  return spec.y.map((position) => {
    const name = columns[position]?.name ?? "";
    return spec.aggregate === "none" ? name : `${spec.aggregate}(${name})`;
  });
}

const unknownColumn: Column = { name: "", type: "STRING_TYPE", comment: "", native_type: "" };

/** Numbers that name things are a poor first choice for an axis of amounts. */
function isKey(column: Column | undefined): boolean {
  return column !== undefined && /(^|_)(id|key|no|nr|year|month|day)$/i.test(column.name);
}
