/** Numbers, sizes, times and durations as people read them. */

const DATE = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const NUMBER = new Intl.NumberFormat("en");
const UNITS = ["KB", "MB", "GB", "TB", "PB"] as const;
const STEPS = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
] as const;
const WEEK_S = 7 * 86_400;

/** Return a number with separators of thousands. Texts of digits may exceed what a number holds exactly. */
export function numberText(number: number | string): string {
  return NUMBER.format(typeof number === "string" ? BigInt(number) : number);
}

/** Return a count with its noun: `1 row`, `12,000 rows`. */
export function countText(count: number | string, one: string, many = `${one}s`): string {
  return `${numberText(count)} ${Number(count) === 1 ? one : many}`;
}

export function rowsText(count: number | string): string {
  return countText(count, "row");
}

/** Return a number of bytes with a unit to the base of 1024, as the server does (Contract storage 4). */
export function bytesText(bytes: number): string {
  if (bytes < 1024) return bytes === 1 ? "1\u00a0byte" : `${bytes}\u00a0bytes`;
  const power = Math.min(UNITS.length, Math.floor(Math.log2(bytes) / 10));
  return `${(bytes / 1024 ** power).toFixed(1)}\u00a0${UNITS[power - 1]}`;
}

/** Return a time, as text or in milliseconds since the epoch, in the time zone of the browser. */
export function dateText(time: string | number): string {
  return DATE.format(new Date(time));
}

/** Return how long ago a time was; the date from a week on. */
export function ago(time: string | number, now: number = Date.now()): string {
  const seconds = (now - new Date(time).getTime()) / 1000;
  if (seconds >= WEEK_S) return dateText(time);
  const step = STEPS.find(([, length]) => seconds >= length);
  return step ? AGO.format(-Math.floor(seconds / step[1]), step[0]) : "just now";
}

/** Return a duration: `3 ms`, `1.9 s`, `2:05 min` or `1:00:07 h`. */
export function durationText(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  if (hours === 0) return `${minutes}:${twoDigits(rest)} min`;
  return `${hours}:${twoDigits(minutes)}:${twoDigits(rest)} h`;
}

function twoDigits(number: number): string {
  return String(number).padStart(2, "0");
}
