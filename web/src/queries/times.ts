/** Times, durations and numbers of rows in lists. */
const DATE = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const STEPS = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
] as const;
const WEEK_S = 7 * 86_400;

/** Return a time as text in the time zone of the user. */
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

/** Return a duration as text, such as 3 ms, 1.9 s or 2:05 min. */
export function durationText(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} min`;
}

export function rowsText(count: number): string {
  return count === 1 ? "1 row" : `${count.toLocaleString("en")} rows`;
}
