const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

/** Return a size in bytes as people read it: `1.5 MiB`. */
export function sizeText(bytes: number): string {
  const step = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  const value = bytes / 1024 ** step;
  return `${value >= 100 || step === 0 ? Math.round(value) : Number(value.toFixed(1))} ${UNITS[step] ?? "B"}`;
}

/** Return a number of rows with a word: `1 row`, `12,000 rows`. */
export function rowsText(count: number | string): string {
  return `${BigInt(count).toLocaleString("en")} ${BigInt(count) === 1n ? "row" : "rows"}`;
}

/** Return a duration in milliseconds as `4.2 s` or `3 min 5 s`. */
export function durationText(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}
