// biome-ignore-all lint/a11y/useSemanticElements: the cells of a table cannot be placed by coordinates
// biome-ignore-all lint/a11y/useFocusableInteractive: the grid has the focus, and names its active cell
import type { VirtualItem } from "@tanstack/react-virtual";
import { memo } from "preact/compat";
import { isNumeric, previewOf } from "./cells.ts";
import styles from "./Grid.module.css";
import { type Column, type Row, TOO_LARGE } from "./rows.ts";

interface Props {
  gridId: string;
  /** Undefined while the row is loaded. */
  row: Row | undefined;
  index: number;
  top: number;
  columns: readonly Column[];
  /** The columns in view, and a text that changes with them and their widths. */
  shown: readonly VirtualItem[];
  shownKey: string;
  /** The active column in this row, and the selected ones; -1 if there are none. */
  active: number;
  left: number;
  right: number;
}

/** A row of the grid. It is rendered again only if what it shows has changed. */
export const GridRow = memo(
  (props: Props) => {
    const { gridId, row, index, top, columns, shown, active, left, right } = props;
    return (
      <div role="row" aria-rowindex={index + 2} class={styles.row} style={{ transform: `translateY(${top}px)` }}>
        <div role="rowheader" aria-colindex={1} class={styles.number} data-row={index}>
          {(index + 1).toLocaleString()}
        </div>
        {row === TOO_LARGE ? (
          <div
            id={`${gridId}-${index}-${active}`}
            role="gridcell"
            aria-colindex={2}
            aria-colspan={columns.length}
            aria-selected={left >= 0}
            data-row={index}
            data-column={0}
            class={active < 0 ? styles.tooLarge : `${styles.tooLarge} ${styles.active}`}
          >
            This row is too large to be shown. Download the result to get it.
          </div>
        ) : null}
        {(row === TOO_LARGE ? [] : shown).map(({ index: column, start, size }) => {
          const about = columns[column];
          if (about === undefined) return null;
          const isSelected = column >= left && column <= right;
          return (
            <div
              key={column}
              id={`${gridId}-${index}-${column}`}
              role="gridcell"
              aria-colindex={column + 2}
              aria-selected={isSelected}
              data-row={index}
              data-column={column}
              class={cellClass(about, row?.[column], row === undefined, isSelected, column === active)}
              style={{ left: `${start}px`, width: `${size}px` }}
            >
              {row === undefined ? "" : previewOf(row[column])}
            </div>
          );
        })}
      </div>
    );
  },
  (before, after) =>
    before.row === after.row &&
    before.index === after.index &&
    before.top === after.top &&
    before.shownKey === after.shownKey &&
    before.active === after.active &&
    before.left === after.left &&
    before.right === after.right &&
    before.columns === after.columns,
);

function cellClass(column: Column, value: unknown, isLoading: boolean, isSelected: boolean, isActive: boolean): string {
  const names = [styles.cell];
  if (isLoading) names.push(styles.loading);
  else if (value === null) names.push(styles.null);
  if (isNumeric(column)) names.push(styles.numeric);
  if (isSelected) names.push(styles.selected);
  if (isActive) names.push(styles.active);
  return names.join(" ");
}
