import { useVirtualizer } from "@tanstack/react-virtual";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import styles from "./queries.module.css";

interface Props {
  label: string;
  count: number;
  rowHeight: number;
  /** Called with the rows [start, end) that are shown. */
  onShown?: (start: number, end: number) => void;
  children: (index: number) => ComponentChildren;
}

/** A list of any length, of which only the shown rows exist. */
export function VirtualList({ label, count, rowHeight, onShown, children }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count,
    getScrollElement: () => box.current,
    estimateSize: () => rowHeight,
    overscan: 8,
  });
  const rows = list.getVirtualItems();
  const [start, end] = [rows[0]?.index ?? 0, (rows.at(-1)?.index ?? -1) + 1];
  useEffect(() => onShown?.(start, end), [onShown, start, end]);
  return (
    <div ref={box} class={styles.scroller}>
      <ul class={styles.virtual} aria-label={label} style={{ height: `${list.getTotalSize()}px` }}>
        {rows.map((row) => (
          <li
            key={row.key}
            class={styles.row}
            aria-setsize={count}
            aria-posinset={row.index + 1}
            style={{ height: `${row.size}px`, transform: `translateY(${row.start}px)` }}
          >
            {children(row.index)}
          </li>
        ))}
      </ul>
    </div>
  );
}
