/** The chart as uPlot draws it. This module is loaded when the first chart is shown. */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Frame } from "./frame.ts";
import { type Look, translucent } from "./look.ts";
import { bars, dots } from "./paths.ts";
import type { Kind } from "./spec.ts";
import { numberTicks, shortened, timeTicks } from "./ticks.ts";

export interface Drawing {
  frame: Frame;
  kind: Kind;
  xLabel: string;
  look: Look;
  width: number;
  height: number;
  /** Called with the index of the point under the cursor, or null. */
  onPoint: (index: number | null) => void;
}

/** Distances of lines for whole numbers, which no half row can have: 1, 2, 5, 10, … */
const WHOLE_STEPS = Array.from({ length: 16 }, (_, index) => [1, 2, 5].map((digit) => digit * 10 ** index)).flat();
const NEAR_PX = 24;
const LABEL_GAP_PX = 10;
const ROTATED_SPACE_PX = 18;
const MOST_LABEL_PX = 150;

export function draw(host: HTMLElement, drawing: Drawing): uPlot {
  const { frame, kind, look, width, height, onPoint } = drawing;
  const isFilled = kind === "bar" || kind === "histogram" || kind === "area";
  const pad = kind === "bar" || kind === "histogram" || frame.axis === "category" ? frame.step / 2 : 0;
  const options: uPlot.Options = {
    width,
    height,
    padding: [12, 28, 0, 0],
    legend: { show: false },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: {
      x: { time: frame.axis === "time", range: (_plot, low, high) => padded(low, high, pad) },
      y: { range: (_plot, low, high) => amounts(low, high, isFilled) },
    },
    axes: [xAxis(drawing), yAxis(frame, look)],
    series: [{}, ...frame.series.map((_, index) => seriesOf(drawing, index))],
    cursor: {
      y: false,
      drag: { x: true, y: false },
      points: { show: kind === "line" || kind === "area" || kind === "scatter" },
      ...(kind === "scatter" ? { dataIdx: nearest } : {}),
    },
    hooks: { setLegend: [(plot) => onPoint(shownIndex(plot))] },
  };
  return new uPlot(options, [frame.x, ...frame.series.map((one) => one.values)], host);
}

function shownIndex(plot: uPlot): number | null {
  return plot.cursor.idxs?.find((index, series) => series > 0 && typeof index === "number") ?? plot.cursor.idx ?? null;
}

function seriesOf({ frame, kind, look }: Drawing, index: number): uPlot.Series {
  const color = look.series[index % look.series.length] ?? look.text;
  const count = frame.series.length;
  const common = { stroke: color, label: frame.series[index]?.label ?? "" };
  const points = { show: false };
  switch (kind) {
    case "bar":
      return { ...common, fill: color, paths: bars(index, count, frame.step, 0.8), points };
    case "histogram":
      return { ...common, fill: color, paths: bars(0, 1, frame.step, 1), points };
    case "scatter":
      return { ...common, fill: translucent(color, 0.75), paths: dots(frame.x.length), points };
    case "area":
      return {
        ...common,
        width: 2,
        fill: translucent(color, 0.22),
        fillTo: 0,
        points: { fill: look.surface, size: 6 },
      };
    case "line":
      return { ...common, width: 2, points: { fill: look.surface, size: 6 } };
  }
}

function yAxis(frame: Frame, look: Look): uPlot.Axis {
  const isWhole = frame.series.every(({ values }) =>
    values.every((value) => value === null || Number.isInteger(value)),
  );
  return {
    ...axisLook(look),
    ...(isWhole ? { incrs: WHOLE_STEPS } : {}),
    size: (_plot, values) => Math.max(44, 18 + Math.max(0, ...(values ?? []).map((text) => measured(text, look)))),
    values: (_plot, splits, _axis, _space, step) => numberTicks(splits, step),
  };
}

function xAxis(drawing: Drawing): uPlot.Axis {
  const { frame, look, xLabel } = drawing;
  const label = { label: xLabel, labelFont: look.font, labelSize: 24, labelGap: 2 };
  if (frame.axis === "category") return { ...axisLook(look), ...label, ...categories(frame, look) };
  const ticks = frame.axis === "time" ? timeTicks : numberTicks;
  return {
    ...axisLook(look),
    ...label,
    space: frame.axis === "time" ? 64 : 80,
    size: frame.axis === "time" ? 48 : 34,
    values: (_plot, splits, _axis, _space, step) => ticks(splits, step),
  };
}

/** Labels of categories: all side by side if they fit, else turned, and as many as there is room for. */
function categories(frame: Frame, look: Look): uPlot.Axis {
  const texts = frame.labels.map(shortened);
  const longest = Math.min(MOST_LABEL_PX, Math.max(0, ...texts.slice(0, 500).map((text) => measured(text, look))));
  const fits = (plot: uPlot) => {
    const { min, max } = plot.scales.x ?? {};
    const shown = Math.max(1, (max ?? 0) - (min ?? 0));
    return plot.bbox.width / devicePixelRatio / shown >= longest + LABEL_GAP_PX;
  };
  return {
    grid: { show: false },
    splits: (plot, _axis, low, high) => {
      const shown = Math.max(1, high - low);
      const room = Math.max(1, plot.bbox.width / devicePixelRatio || plot.width);
      const every = fits(plot) ? 1 : Math.max(1, Math.ceil((ROTATED_SPACE_PX * shown) / room));
      const splits = [];
      for (let at = Math.ceil(Math.max(0, low) / every) * every; at <= high && at < texts.length; at += every)
        splits.push(at);
      return splits;
    },
    values: (_plot, splits) => splits.map((at) => texts[at] ?? ""),
    rotate: (plot) => (fits(plot) ? 0 : 45),
    size: (plot) => (fits(plot) ? 34 : 24 + longest * 0.72),
  };
}

function axisLook(look: Look): uPlot.Axis {
  const lines = { stroke: look.line, width: 1 };
  return { stroke: look.textSoft, font: look.font, grid: lines, ticks: { ...lines, size: 4 }, gap: 4 };
}

function padded(low: number | null, high: number | null, pad: number): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  if (low === high) return [low - (pad || 1), high + (pad || 1)];
  return [low - pad, high + pad];
}

/** Bars and areas begin at zero, so that their sizes can be compared. */
function amounts(low: number | null, high: number | null, isFilled: boolean): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  return uPlot.rangeNum(isFilled ? Math.min(0, low) : low, isFilled ? Math.max(0, high) : high, 0.1, true);
}

/** Of points that are near on the x axis, return the one nearest to the cursor. */
function nearest(plot: uPlot, series: number, closest: number): number {
  const { left = 0, top = 0 } = plot.cursor;
  const xs = plot.data[0];
  const ys = plot.data[series];
  if (series === 0 || !xs || !ys || top < 0) return closest;
  let best = closest;
  let least = Infinity;
  const visit = (index: number): boolean => {
    const across = plot.valToPos(xs[index] ?? 0, "x") - left;
    const y = ys[index];
    const distance = y === null || y === undefined ? Infinity : Math.hypot(across, plot.valToPos(y, "y") - top);
    if (distance < least) {
      least = distance;
      best = index;
    }
    return Math.abs(across) < NEAR_PX;
  };
  for (let index = closest; index < xs.length && visit(index); index += 1);
  for (let index = closest - 1; index >= 0 && visit(index); index -= 1);
  return best;
}

const ruler = document.createElement("canvas").getContext("2d");

function measured(text: string, look: Look): number {
  if (!ruler) return text.length * 7;
  ruler.font = look.font;
  return Math.ceil(ruler.measureText(text).width);
}
