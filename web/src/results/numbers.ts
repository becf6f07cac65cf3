/** Durations and counts as people read them. */

export function durationText(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = String(Math.floor(seconds % 60)).padStart(2, "0");
  return minutes < 60
    ? `${minutes}:${rest} min`
    : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest} h`;
}

export function rowsText(count: number): string {
  return `${count.toLocaleString()} ${count === 1 ? "row" : "rows"}`;
}
