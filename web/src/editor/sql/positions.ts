/** Where an error of the server is in the text of the editor (Contract editor 3.4, 5.2). */

/** A place in a text: rows from 0, columns in Unicode code points from 0, lines end at `\n`, `\r\n` or `\r`. */
export interface RowColumn {
  row: number;
  column: number;
}

/** The characters [from, to) that are marked. */
export interface Mark {
  from: number;
  to: number;
}

const LINE_BREAK = /\r\n|[\r\n]/g;
const WORD = /[\p{L}\p{N}_$]+/uy;

/** Return the offset of a place, or null if the text has no such line. A column past the line's end is its end. */
export function offsetOf(text: string, { row, column }: RowColumn, from = 0): number | null {
  let start = from;
  LINE_BREAK.lastIndex = from;
  for (let line = 0; line < row; line += 1) {
    if (!LINE_BREAK.exec(text)) return null;
    start = LINE_BREAK.lastIndex;
  }
  const end = lineEnd(text, start);
  let at = start;
  for (let passed = 0; passed < column && at < end; passed += 1) {
    at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
  }
  return Math.min(at, end);
}

/** Return the offset of the first character of a statement of a script, from its `start` (5.2). */
export function statementStart(script: string, start: RowColumn): number | null {
  const offset = offsetOf(script, start);
  if (offset === null) return null;
  // The column is that after the previous terminator, or 0; the statement itself begins after the blanks.
  const rest = script.slice(offset);
  return offset + (rest.length - rest.trimStart().length);
}

/**
 * Return what to mark for an error at `line` and `column` (both from 1) of the statement that begins at `from`: the
 * word at that place, the rest of the line if there is no word, or the whole line if the column is unknown.
 */
export function errorMark(text: string, from: number, line: number, column: number | null): Mark | null {
  const row = line - 1;
  if (row < 0) return null;
  if (column === null) {
    const start = offsetOf(text, { row, column: 0 }, from);
    return start === null ? null : wholeLine(text, start);
  }
  const at = offsetOf(text, { row, column: column - 1 }, from);
  if (at === null) return null;
  WORD.lastIndex = at;
  if (WORD.test(text)) return { from: at, to: WORD.lastIndex };
  const end = lineEnd(text, at);
  // At the end of a line or text there is nothing to underline, so the last character before it is marked.
  return at < end ? { from: at, to: at + 1 } : { from: Math.max(from, at - 1), to: at };
}

function wholeLine(text: string, start: number): Mark {
  const line = text.slice(start, lineEnd(text, start));
  const from = start + (line.length - line.trimStart().length);
  return { from, to: Math.max(from, start + line.trimEnd().length) };
}

function lineEnd(text: string, from: number): number {
  LINE_BREAK.lastIndex = from;
  return LINE_BREAK.exec(text)?.index ?? text.length;
}
