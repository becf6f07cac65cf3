import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { theme } from "../app/theme.ts";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./ChartPanel.module.css";
import type { Drawing } from "./draw.ts";
import type { Frame } from "./frame.ts";
import { lookOf } from "./look.ts";
import type { Kind } from "./spec.ts";

interface Props {
  frame: Frame;
  kind: Kind;
  title: string;
  xLabel: string;
  /** Positions of the series that are not drawn. */
  hidden: ReadonlySet<number>;
  /** Called with the index of the point under the cursor, or null. */
  onPoint: (index: number | null) => void;
  /** Called with the drawn chart, for the picture; null when it goes. */
  onDrawn: (plot: uPlot | null) => void;
}

type Draw = (host: HTMLElement, drawing: Drawing) => uPlot;

/** A drawn chart. Arrow keys move from point to point, plus and minus zoom, 0 shows all. */
export function Plot(props: Props) {
  const { value: module, problem, reload } = useLoaded("draw", () => import("./draw.ts"));
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (module === null) return <Loading label="Loading the chart" />;
  return <DrawnPlot {...props} draw={module.draw} />;
}

function DrawnPlot({ frame, kind, title, xLabel, hidden, onPoint, onDrawn, draw }: Props & { draw: Draw }) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const at = useRef<number | null>(null);
  const isDark = useDarkness();
  const events = useRef({ onPoint, onDrawn });
  events.current = { onPoint, onDrawn };

  // biome-ignore lint/correctness/useExhaustiveDependencies: the colors are read again when they change
  useLayoutEffect(() => {
    const element = host.current;
    if (!element) return;
    const size = { width: element.clientWidth, height: element.clientHeight };
    const drawing = { frame, kind, xLabel, look: lookOf(element), ...size };
    const drawn = draw(element, {
      ...drawing,
      onPoint: (index) => {
        at.current = index;
        events.current.onPoint(index);
      },
    });
    plot.current = drawn;
    events.current.onDrawn(drawn);
    const observer = new ResizeObserver(() =>
      drawn.setSize({ width: element.clientWidth, height: element.clientHeight }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      drawn.destroy();
      plot.current = null;
      events.current.onDrawn(null);
    };
  }, [frame, kind, xLabel, isDark, draw]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: a chart that was drawn again shows all series
  useEffect(() => {
    frame.series.forEach((_, index) => {
      plot.current?.setSeries(index + 1, { show: !hidden.has(index) });
    });
  }, [hidden, frame, kind, isDark]);

  return (
    <div
      ref={host}
      class={styles.plot}
      role="application"
      aria-roledescription="chart"
      aria-label={title}
      aria-description="Arrow keys move from point to point, plus and minus zoom, 0 shows all. The table has the same values."
      // biome-ignore lint/a11y/noNoninteractiveTabindex: the points are reached with the keyboard
      tabIndex={0}
      onKeyDown={(event) => {
        if (plot.current && press(plot.current, event.key, at.current)) event.preventDefault();
      }}
    />
  );
}

/** Act on a key. Returns false if the chart does not use it. */
function press(plot: uPlot, key: string, now: number | null): boolean {
  const count = plot.data[0]?.length ?? 0;
  const many = Math.max(1, Math.round(count / 10));
  const from = now ?? -1;
  const to = {
    ArrowRight: from + 1,
    ArrowLeft: now === null ? count - 1 : from - 1,
    PageDown: from + many,
    PageUp: from - many,
    Home: 0,
    End: count - 1,
  }[key];
  if (to !== undefined) {
    show(plot, Math.max(0, Math.min(count - 1, to)));
    return true;
  }
  const factor = { "+": 0.5, "-": 2, "0": Infinity }[key];
  if (factor === undefined) return false;
  zoom(plot, factor, now);
  return true;
}

/** Put the cursor on a point, which the zoom follows. */
function show(plot: uPlot, index: number): void {
  const x = plot.data[0]?.[index];
  if (x === undefined) return;
  const { min = 0, max = 0 } = plot.scales.x ?? {};
  if (x < min || x > max) {
    const half = (max - min) / 2;
    plot.setScale("x", { min: x - half, max: x + half });
  }
  const y = plot.data.slice(1).find((values) => values[index] !== null)?.[index];
  plot.setCursor({ left: plot.valToPos(x, "x"), top: plot.valToPos(y ?? 0, "y") }, true);
}

function zoom(plot: uPlot, factor: number, index: number | null): void {
  const xs = plot.data[0];
  const [first, last] = [xs?.[0] ?? 0, xs?.[xs.length - 1] ?? 0];
  const { min = first, max = last } = plot.scales.x ?? {};
  const middle = (index === null ? undefined : xs?.[index]) ?? (min + max) / 2;
  const half = ((max - min) / 2) * factor;
  plot.setScale("x", { min: Math.max(first, middle - half), max: Math.min(last, middle + half) });
}

/** Return whether the page is dark, and render again when that changes. */
function useDarkness(): boolean {
  const [isDarkSystem, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return theme.value === "system" ? isDarkSystem : theme.value === "dark";
}
