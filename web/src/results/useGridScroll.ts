import { useVirtualizer, type Virtualizer } from "@tanstack/react-virtual";
import type { RefObject } from "preact";
import { useCallback, useMemo, useReducer } from "preact/hooks";
import { ScrollMap } from "./scrollMap.ts";

export const ROW_PX = 28;
export const HEADER_PX = 44;
export const NUMBER_PX = 72;
const OVERSCAN_ROWS = 10;
const OVERSCAN_COLUMNS = 2;
const SETTLE_MS = 160;

type Rows = Virtualizer<HTMLDivElement, Element>;

/** The rows and columns in view of a scrolling element, for lists higher than the browser permits. */
export function useGridScroll(scroller: RefObject<HTMLDivElement | null>, rowCount: number, widths: readonly number[]) {
  const map = useMemo(() => new ScrollMap(), []);
  const [, renderAgain] = useReducer((count: number) => count + 1, 0);
  const rows = useVirtualizer<HTMLDivElement, Element>({
    count: rowCount,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN_ROWS,
    observeElementOffset: useCallback((instance: Rows, report: Report) => observe(instance, report, map), [map]),
    scrollToFn: () => undefined,
  });
  const columns = useVirtualizer<HTMLDivElement, Element>({
    count: widths.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) => widths[index] ?? 0,
    overscan: OVERSCAN_COLUMNS,
    horizontal: true,
    paddingStart: NUMBER_PX,
  });
  map.resize(rowCount * ROW_PX + HEADER_PX, scroller.current?.clientHeight ?? 0);

  /** Scroll as little as needed so that the cell is in view. */
  const reveal = (row: number, column: number) => {
    const element = scroller.current;
    if (element === null) return;
    const top = row * ROW_PX;
    const bottom = top + ROW_PX + HEADER_PX - element.clientHeight;
    if (top < map.offset) element.scrollTop = map.go(top);
    else if (bottom > map.offset) element.scrollTop = map.go(bottom);
    const start = widths.slice(0, column).reduce((sum, width) => sum + width, 0);
    const end = start + NUMBER_PX + (widths[column] ?? 0) - element.clientWidth;
    if (start < element.scrollLeft) element.scrollLeft = start;
    else if (end > element.scrollLeft) element.scrollLeft = end;
    renderAgain(0);
  };
  return { rows, columns, map, reveal };
}

type Report = (offset: number, isScrolling: boolean) => void;

/** Report the position in the list whenever the element scrolls, and put the scroll bar right after a move. */
function observe(instance: Rows, report: Report, map: ScrollMap): () => void {
  const element = instance.scrollElement;
  if (element === null) return () => undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const settle = () => {
    const top = map.settled();
    if (top !== null) element.scrollTop = top;
    report(map.offset, false);
  };
  const onScroll = () => {
    report(map.moved(element.scrollTop), true);
    clearTimeout(timer);
    if (map.isStuck) settle();
    else timer = setTimeout(settle, SETTLE_MS);
  };
  element.addEventListener("scroll", onScroll, { passive: true });
  report(map.moved(element.scrollTop), false);
  return () => {
    clearTimeout(timer);
    element.removeEventListener("scroll", onScroll);
  };
}
