import { useVirtualizer } from "@tanstack/react-virtual";
import type { ComponentChildren, VNode } from "preact";
import { useRef } from "preact/hooks";
import styles from "./VirtualTable.module.css";

const ROW_PX = 33;
const OVERSCAN = 10;

interface Head {
  title: string;
  /** A second line, such as the type of a column. */
  detail?: string;
  isNumber?: boolean;
}

interface Props {
  label: string;
  heads: readonly Head[];
  count: number;
  /** Return the cells of a row (`<th scope="row">` and `<td>`). */
  cellsOf: (index: number) => ComponentChildren;
}

/** A table of which only the visible rows are in the document. All rows have the same height. */
export function VirtualTable({ label, heads, count, cellsOf }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
  });
  const items = virtual.getVirtualItems();
  const above = items[0]?.start ?? 0;
  const below = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section ref={scroller} class={styles.scroller} aria-label={label} tabIndex={0}>
      <table class={styles.table} aria-rowcount={count + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {heads.map(({ title, detail, isNumber }, index) => (
              <th key={`${index}:${title}`} scope="col" class={isNumber ? styles.number : undefined} title={title}>
                {title}
                {detail ? <span class={styles.kind}>{detail}</span> : null}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Spacer height={above} columns={heads.length} />
          {items.map(({ index }) => (
            <tr key={index} aria-rowindex={index + 2}>
              {cellsOf(index)}
            </tr>
          ))}
          <Spacer height={below} columns={heads.length} />
        </tbody>
      </table>
    </section>
  );
}

/** A cell whose text is shown in full as a tooltip. */
export function TextCell({ text, isNumber = false }: { text: string; isNumber?: boolean }): VNode {
  return (
    <td class={isNumber ? styles.number : undefined} title={text}>
      {text}
    </td>
  );
}

function Spacer({ height, columns }: { height: number; columns: number }) {
  if (height <= 0) return null;
  return (
    <tr aria-hidden>
      <td class={styles.spacer} colSpan={columns} style={{ height: `${height}px` }} />
    </tr>
  );
}
