/** The selected cells of a grid: a rectangle between the active cell and the cell where the selection began. */

export interface Cell {
  row: number;
  column: number;
}

export interface Selection {
  anchor: Cell;
  active: Cell;
}

export interface Rectangle {
  top: number;
  bottom: number;
  left: number;
  right: number;
}

interface Extent {
  rows: number;
  columns: number;
  /** Rows of a page up or down. */
  page: number;
}

export const START: Selection = { anchor: { row: 0, column: 0 }, active: { row: 0, column: 0 } };

export function rectangleOf({ anchor, active }: Selection): Rectangle {
  return {
    top: Math.min(anchor.row, active.row),
    bottom: Math.max(anchor.row, active.row),
    left: Math.min(anchor.column, active.column),
    right: Math.max(anchor.column, active.column),
  };
}

/** Return the selection after a key, or null if the key does not move. Shift extends, Ctrl goes to the end. */
export function moved(
  selection: Selection,
  event: Pick<KeyboardEvent, "key" | "shiftKey" | "ctrlKey" | "metaKey" | "altKey">,
  extent: Extent,
): Selection | null {
  if (event.altKey) return null;
  const isFar = event.ctrlKey || event.metaKey;
  const { row, column } = selection.active;
  const [lastRow, lastColumn] = [extent.rows - 1, extent.columns - 1];
  const targets: Record<string, Cell> = {
    ArrowUp: { row: isFar ? 0 : row - 1, column },
    ArrowDown: { row: isFar ? lastRow : row + 1, column },
    ArrowLeft: { row, column: isFar ? 0 : column - 1 },
    ArrowRight: { row, column: isFar ? lastColumn : column + 1 },
    PageUp: { row: row - extent.page, column },
    PageDown: { row: row + extent.page, column },
    Home: { row: isFar ? 0 : row, column: 0 },
    End: { row: isFar ? lastRow : row, column: lastColumn },
  };
  const target = targets[event.key];
  if (target === undefined) return null;
  const active = { row: within(target.row, lastRow), column: within(target.column, lastColumn) };
  return { anchor: event.shiftKey ? selection.anchor : active, active };
}

function within(value: number, last: number): number {
  return Math.max(0, Math.min(last, value));
}

export type Command = "open" | "copy" | "copy with names" | "select all" | "narrower" | "wider" | "fit the rows";
type Pressed = Pick<KeyboardEvent, "key" | "shiftKey" | "ctrlKey" | "metaKey" | "altKey">;

/** Return what a key that does not move does to the selected cells, or null. */
export function commandOf({ key, shiftKey, ctrlKey, metaKey, altKey }: Pressed): Command | null {
  if (altKey) {
    if (!shiftKey) return null;
    return key === "ArrowLeft" ? "narrower" : key === "ArrowRight" ? "wider" : null;
  }
  if (key === "Enter") return "open";
  if (!ctrlKey && !metaKey) return null;
  // With Shift and with Caps Lock the letters are capitals.
  if (key.toLowerCase() === "a") return "select all";
  if (key.toLowerCase() === "c") return shiftKey ? "copy with names" : "copy";
  return null;
}
