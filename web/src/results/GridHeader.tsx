// biome-ignore-all lint/a11y/useSemanticElements: the cells of a table cannot be placed by coordinates
// biome-ignore-all lint/a11y/useFocusableInteractive: the grid has the focus, and names its active cell
import type { VirtualItem } from "@tanstack/react-virtual";
import styles from "./Grid.module.css";
import type { Column } from "./rows.ts";

interface Props {
  columns: readonly Column[];
  shown: readonly VirtualItem[];
  width: number;
  onResize: (column: number, width: number) => void;
}

/** Names and types of the columns. Their right edges can be dragged. */
export function GridHeader({ columns, shown, width, onResize }: Props) {
  return (
    <div role="rowgroup" class={styles.header} style={{ width: `${width}px` }}>
      <div role="row" aria-rowindex={1}>
        <div role="columnheader" aria-colindex={1} class={styles.corner}>
          <span class="visually-hidden">Row number</span>
          <span aria-hidden="true">#</span>
        </div>
        {shown.map(({ index, start, size }) => {
          const column = columns[index];
          if (column === undefined) return null;
          return (
            <div
              key={index}
              role="columnheader"
              aria-colindex={index + 2}
              class={styles.columnHeader}
              style={{ left: `${start}px`, width: `${size}px` }}
              title={[column.name, column.native_type, column.comment].filter(Boolean).join("\n")}
            >
              <div class={styles.name}>{column.name}</div>
              <div class={styles.type}>{column.native_type}</div>
              <div
                class={styles.resizer}
                onPointerDown={(event) => drag(event, size, (next) => onResize(index, next))}
              />
            </div>
          );
        })}
      </div>
    </div>
  );
}

function drag(event: PointerEvent, width: number, resize: (width: number) => void): void {
  event.preventDefault();
  event.stopPropagation();
  const end = new AbortController();
  const move = (next: PointerEvent) => resize(width + next.clientX - event.clientX);
  window.addEventListener("pointermove", move, { signal: end.signal });
  for (const name of ["pointerup", "pointercancel"]) {
    window.addEventListener(name, () => end.abort(), { signal: end.signal });
  }
}
