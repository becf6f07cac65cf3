/** Texts of axes and of the point under the cursor. */
import type { Frame } from "./frame.ts";

const DAY_S = 86_400;
const MONTH_S = 28 * DAY_S;
const YEAR_S = 365 * DAY_S;
const UNITS = [1e12, 1e9, 1e6] as const;
const LABEL_CHARACTERS = 24;

/** Return the texts of numbers on an axis with this distance; from a million on in the short form, such as 1.25M. */
export function numberTicks(splits: readonly number[], step: number): string[] {
  const most = splits.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  const unit = UNITS.find((one) => most >= one) ?? 1;
  const digits = Math.min(12, Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  const format = new Intl.NumberFormat("en", {
    notation: unit > 1 ? "compact" : "standard",
    maximumFractionDigits: digits,
  });
  return splits.map((value) => format.format(value));
}

/** Return the texts of times (seconds, UTC) on an axis; a second line has the day or year where it changes. */
export function timeTicks(splits: readonly number[], step: number): string[] {
  let before = "";
  return splits.map((seconds) => {
    const [line, rest] = timeLines(new Date(seconds * 1000).toISOString(), step);
    const isNew = rest !== "" && rest !== before;
    before = rest;
    return isNew ? `${line}\n${rest}` : line;
  });
}

/** Return what differs between neighbors at this distance, and what is the same for most of them. */
function timeLines(text: string, step: number): [line: string, rest: string] {
  if (step >= YEAR_S) return [text.slice(0, 4), ""];
  if (step >= MONTH_S) return [text.slice(0, 7), ""];
  if (step >= DAY_S) return [text.slice(5, 10), text.slice(0, 4)];
  return [text.slice(11, step < 60 ? 19 : 16), text.slice(0, 10)];
}

/** Return a number in full, with at most 15 significant digits, which is what a double has. */
export function numberText(value: number | null): string {
  return value === null ? "–" : new Intl.NumberFormat("en", { maximumSignificantDigits: 15 }).format(value);
}

/** Return the text of the place of a point on the x axis. Bins of a histogram have two ends. */
export function placeText(frame: Frame, index: number, isHistogram: boolean): string {
  const x = frame.x[index];
  if (x === undefined) return "";
  if (frame.axis === "category") return frame.labels[x] ?? "";
  if (frame.axis === "time") return timeText(x);
  if (!isHistogram || isWholeBin(frame, x)) return numberText(x);
  return `${numberText(round(x - frame.step / 2))} – ${numberText(round(x + frame.step / 2))}`;
}

/** Return a label that fits beside others. */
export function shortened(label: string): string {
  const line = label.replaceAll(/\s+/g, " ");
  return line.length > LABEL_CHARACTERS ? `${line.slice(0, LABEL_CHARACTERS - 1)}…` : line;
}

function timeText(seconds: number): string {
  const text = new Date(seconds * 1000).toISOString();
  return seconds % DAY_S === 0 ? text.slice(0, 10) : text.slice(0, 19).replace("T", " ");
}

function isWholeBin(frame: Frame, x: number): boolean {
  return frame.step === 1 && Number.isInteger(x);
}

function round(value: number): number {
  return Number(value.toPrecision(10));
}
