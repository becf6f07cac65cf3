import { useMemo, useRef, useState } from "preact/hooks";
import { columnWidths, WIDTH } from "./cells.ts";
import type { Column, Row, RowSource } from "./rows.ts";

const SAMPLED_ROWS = 30;
const STEP_PX = 24;

/** The widths of the columns in pixels, from their names and the first rows until the user changes them. */
export function useColumnWidths(source: RowSource, columns: readonly Column[]) {
  const sample = useRef<readonly Row[]>([]);
  // The first rows may arrive one by one, and are dropped when the view is far from them.
  if (sample.current.length < SAMPLED_ROWS) {
    const rows = rowsOf(source, 0, SAMPLED_ROWS);
    if (rows.length > sample.current.length) sample.current = rows;
  }
  const rows = sample.current;
  const initial = useMemo(() => columnWidths(columns, rows), [columns, rows]);
  const [changed, setChanged] = useState<ReadonlyMap<number, number>>(new Map());
  const widths = useMemo(() => initial.map((width, index) => changed.get(index) ?? width), [initial, changed]);
  const setWidth = (column: number, width: number) =>
    setChanged((before) => new Map(before).set(column, Math.max(WIDTH.least, Math.round(width))));
  return {
    widths,
    setWidth,
    widen: (column: number, steps: number) => setWidth(column, (widths[column] ?? 0) + steps * STEP_PX),
    /** Fit a column to the rows [start, end), as far as they are loaded. */
    fitToRows: (column: number, start: number, end: number) => {
      const width = columnWidths(columns, rowsOf(source, start, end))[column];
      if (width !== undefined) setWidth(column, width);
    },
  };
}

function rowsOf(source: RowSource, start: number, end: number): Row[] {
  const rows = Array.from({ length: Math.max(0, end - start) }, (_, offset) => source.row(start + offset));
  return rows.filter((row) => row !== undefined);
}
