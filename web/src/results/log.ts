/** The log of an operation as the page shows it: the latest lines, with their numbers. */

const MOST_LINES = 20_000;

export interface Log {
  /** The number of the first line that is kept, from 0. */
  first: number;
  lines: readonly string[];
}

export const EMPTY_LOG: Log = { first: 0, lines: [] };

/** Add lines that begin at a number. Lines that are known already are not added again; the oldest are dropped. */
export function withLines(log: Log, from: number, lines: readonly string[]): Log {
  const next = log.first + log.lines.length;
  if (from > next && log.lines.length > 0) return withLines({ first: from, lines: [] }, from, lines);
  const base = log.lines.length === 0 ? { first: from, lines: [] } : log;
  const added = [...base.lines, ...lines.slice(Math.max(0, base.first + base.lines.length - from))];
  const dropped = Math.max(0, added.length - MOST_LINES);
  return { first: base.first + dropped, lines: added.slice(dropped) };
}
