/** From rows to the points of a chart: grouping, sums and bins. */

import type { Column } from "../results/rows.ts";
import { BINS, type ChartSpec, MAX_SERIES, seriesLabels } from "./spec.ts";
import { type AxisKind, axisKind, type Cell, labelOf, numberOf, secondsOf } from "./values.ts";

export type Row = readonly Cell[];

export interface Series {
  label: string;
  values: (number | null)[];
}

/** Points of a chart, ordered by x. */
export interface Frame {
  axis: AxisKind;
  /** Numbers, seconds since 1970, or positions in `labels`. */
  x: number[];
  /** Categories; empty on other axes. */
  labels: string[];
  series: Series[];
  /** Width of a bar in units of x: a bin of a histogram, a category, or the smallest distance of two points. */
  step: number;
  /** Rows without a value for x, which are not drawn. */
  skipped: number;
}

/** Return the points of a chart of these rows. */
export function frameOf(rows: readonly Row[], columns: readonly Column[], spec: ChartSpec): Frame {
  if (spec.kind === "histogram") return histogram(rows, spec);
  const column = columns[spec.x];
  const axis = column ? axisKind(column) : "category";
  const y = spec.y.slice(0, MAX_SERIES);
  const labels = seriesLabels({ ...spec, y }, columns);
  const points = positioned(rows, axis, spec.x);
  if (spec.aggregate === "none") return plain(points, axis, y, labels);
  return grouped(points, axis, spec, y, labels);
}

/** Return whether several rows have the same x, so that a sum or count says more than single rows. */
export function repeats(rows: readonly Row[], x: number): boolean {
  return new Set(rows.map((row) => labelOf(row[x]))).size < rows.length;
}

interface Positioned {
  kept: { at: number; row: Row }[];
  labels: string[];
  skipped: number;
}

/** Put each row on the axis. Rows of one category share a position. */
function positioned(rows: readonly Row[], axis: AxisKind, x: number): Positioned {
  const positions = new Map<string, number>();
  const kept: Positioned["kept"] = [];
  for (const row of rows) {
    const at = axis === "category" ? categoryAt(positions, labelOf(row[x])) : numericAt(axis, row[x]);
    if (at !== null) kept.push({ at, row });
  }
  return { kept, labels: [...positions.keys()], skipped: rows.length - kept.length };
}

function categoryAt(positions: Map<string, number>, label: string): number {
  const known = positions.get(label);
  if (known !== undefined) return known;
  positions.set(label, positions.size);
  return positions.size - 1;
}

function numericAt(axis: AxisKind, cell: Cell): number | null {
  return axis === "time" ? secondsOf(cell) : numberOf(cell);
}

function plain(points: Positioned, axis: AxisKind, y: readonly number[], names: readonly string[]): Frame {
  const ordered = points.kept.toSorted((one, other) => one.at - other.at);
  const x = ordered.map((point) => point.at);
  const series = names.map((label, index) => ({
    label,
    values: ordered.map(({ row }) => numberOf(row[y[index] ?? -1])),
  }));
  return { axis, x, labels: points.labels, series, step: stepOf(axis, x), skipped: points.skipped };
}

interface Group {
  count: number;
  sum: number;
  min: number;
  max: number;
}

const VALUE: Record<Exclude<ChartSpec["aggregate"], "none">, (group: Group) => number | null> = {
  sum: (group) => (group.count ? group.sum : null),
  count: (group) => group.count,
  avg: (group) => (group.count ? group.sum / group.count : null),
  min: (group) => (group.count ? group.min : null),
  max: (group) => (group.count ? group.max : null),
};

function grouped(
  points: Positioned,
  axis: AxisKind,
  spec: ChartSpec,
  y: readonly number[],
  names: readonly string[],
): Frame {
  const aggregate = spec.aggregate === "none" || y.length === 0 ? "count" : spec.aggregate;
  const groups = new Map<number, Group[]>();
  for (const { at, row } of points.kept) {
    const known = groups.get(at) ?? names.map(() => ({ count: 0, sum: 0, min: Infinity, max: -Infinity }));
    groups.set(at, known);
    known.forEach((group, index) => {
      const column = y[index];
      add(group, column === undefined ? 1 : countable(row[column], aggregate));
    });
  }
  const x = [...groups.keys()].sort((one, other) => one - other);
  const series = names.map((label, index) => ({
    label,
    values: x.map((at) => {
      const group = groups.get(at)?.[index];
      return group ? VALUE[aggregate](group) : null;
    }),
  }));
  const frame = { axis, x, labels: points.labels, series, step: stepOf(axis, x), skipped: points.skipped };
  return axis === "category" ? byValue(frame) : frame;
}

/** Texts can be counted, though they are no numbers. */
function countable(cell: Cell, aggregate: ChartSpec["aggregate"]): number | null {
  if (aggregate === "count") return cell === null || cell === undefined ? null : 1;
  return numberOf(cell);
}

function add(group: Group, value: number | null): void {
  if (value === null) return;
  group.count += 1;
  group.sum += value;
  group.min = Math.min(group.min, value);
  group.max = Math.max(group.max, value);
}

/** Order the categories by the first series, the largest first. */
export function byValue(frame: Frame): Frame {
  const first = frame.series[0]?.values ?? [];
  const order = frame.x.map((_, index) => index);
  order.sort((one, other) => (first[other] ?? -Infinity) - (first[one] ?? -Infinity) || one - other);
  return {
    ...frame,
    labels: order.map((index) => frame.labels[frame.x[index] ?? index] ?? ""),
    x: order.map((_, position) => position),
    series: frame.series.map(({ label, values }) => ({ label, values: order.map((index) => values[index] ?? null) })),
  };
}

/** Bins of equal width, from `start` on. */
export interface Bins {
  start: number;
  width: number;
  count: number;
}

/** Return the bins for values from `low` to `high`: one for each of few whole numbers, else 30. */
function binsOf(low: number, high: number, isWhole: boolean): Bins {
  if (isWhole && high - low < BINS) return { start: low - 0.5, width: 1, count: high - low + 1 };
  return { start: low, width: (high - low) / BINS || 1, count: BINS };
}

function histogram(rows: readonly Row[], spec: ChartSpec): Frame {
  const column = spec.y[0] ?? spec.x;
  const values = rows.map((row) => numberOf(row[column])).filter((value) => value !== null);
  if (values.length === 0) return histogramFrame(new Map(), { start: 0, width: 1, count: 0 }, rows.length);
  const low = values.reduce((least, value) => Math.min(least, value));
  const high = values.reduce((most, value) => Math.max(most, value));
  const bins = binsOf(low, high, values.every(Number.isInteger));
  const counts = new Map<number, number>();
  for (const value of values) {
    const bin = Math.min(Math.floor((value - bins.start) / bins.width), bins.count - 1);
    counts.set(bin, (counts.get(bin) ?? 0) + 1);
  }
  return histogramFrame(counts, bins, rows.length - values.length);
}

/** Return the frame of a histogram; x is the middle of each bin. Bins without rows are zero. */
export function histogramFrame(counts: ReadonlyMap<number, number>, bins: Bins, skipped: number): Frame {
  const positions = Array.from({ length: bins.count }, (_, bin) => bin);
  return {
    axis: "number",
    x: positions.map((bin) => bins.start + (bin + 0.5) * bins.width),
    labels: [],
    series: [{ label: "rows", values: positions.map((bin) => counts.get(bin) ?? 0) }],
    step: bins.width,
    skipped,
  };
}

function stepOf(axis: AxisKind, x: readonly number[]): number {
  if (axis === "category") return 1;
  let step = Infinity;
  for (let index = 1; index < x.length; index += 1) {
    const distance = (x[index] ?? 0) - (x[index - 1] ?? 0);
    if (distance > 0 && distance < step) step = distance;
  }
  return Number.isFinite(step) ? step : axis === "time" ? 86_400 : 1;
}
