/** Sizes, times and counts as text. */

const UNITS = ["KB", "MB", "GB", "TB", "PB"] as const;
const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const COUNT = new Intl.NumberFormat();

/** Return a number of bytes with a unit to the base of 1024, as the server does (Contract storage 4). */
export function bytesText(bytes: number): string {
  if (bytes < 1024) return bytes === 1 ? "1\u00a0byte" : `${bytes}\u00a0bytes`;
  const power = Math.min(UNITS.length, Math.floor(Math.log(bytes) / Math.log(1024)));
  return `${(bytes / 1024 ** power).toFixed(1)}\u00a0${UNITS[power - 1]}`;
}

/** Return the time of seconds since the epoch in the zone of the browser; empty if the store has none. */
export function timeText(seconds: number | null): string {
  return seconds ? DATE.format(seconds * 1000) : "";
}

export function countText(count: number, noun: string): string {
  return `${COUNT.format(count)} ${count === 1 ? noun : `${noun}s`}`;
}
