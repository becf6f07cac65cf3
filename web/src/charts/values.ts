/** What a chart reads from cells: numbers, times, and categories (Contract editor 6.3). */
import { isNumeric } from "../results/cells.ts";
import type { Column } from "../results/rows.ts";

export type Cell = unknown;
export type AxisKind = "number" | "time" | "category";

const TIMES = new Set(["DATE_TYPE", "TIMESTAMP_TYPE", "TIMESTAMPLOCALTZ_TYPE"]);
const TIME = /^(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(\.\d+)?)?)?\s*(UTC|Z|[+-]\d\d(?::?\d\d)?)?/;

const NULL_LABEL = "NULL";
const EMPTY_LABEL = "(empty)";

/** Return the kind of axis that a column needs. */
export function axisKind(column: Column): AxisKind {
  if (isNumeric(column)) return "number";
  return TIMES.has(column.type) ? "time" : "category";
}

/** Return a cell as a finite number, or null. Digits beyond those of a double are rounded: a chart cannot show them. */
export function numberOf(cell: Cell): number | null {
  if (typeof cell === "boolean") return cell ? 1 : 0;
  if (typeof cell !== "number" && typeof cell !== "string") return null;
  if (cell === "") return null;
  const value = Number(cell);
  return Number.isFinite(value) ? value : null;
}

/** Return a date or timestamp cell as seconds since 1970 UTC, or null. Cells without a zone count as UTC. */
export function secondsOf(cell: Cell): number | null {
  if (typeof cell !== "string") return null;
  const match = TIME.exec(cell);
  if (!match) return null;
  const [, year, month, day, hour = "0", minute = "0", second = "0", fraction = "0", zone = ""] = match;
  const at = Date.UTC(Number(year), Number(month) - 1, Number(day), Number(hour), Number(minute), Number(second));
  return Number.isNaN(at) ? null : at / 1000 + Number(fraction) - offsetSeconds(zone);
}

/** Return the label of a cell on an axis of categories. NULL and the empty text differ. */
export function labelOf(cell: Cell): string {
  if (cell === null || cell === undefined) return NULL_LABEL;
  if (cell === "") return EMPTY_LABEL;
  return typeof cell === "object" ? JSON.stringify(cell) : String(cell);
}

function offsetSeconds(zone: string): number {
  const match = /^([+-])(\d\d):?(\d\d)?$/.exec(zone);
  if (!match) return 0;
  const [, sign, hours, minutes = "0"] = match;
  return (sign === "-" ? -1 : 1) * (Number(hours) * 3600 + Number(minutes) * 60);
}
