/** Where an error of the server is in the text of the editor (Contract editor 3.4, 5.2). */

/** A place in a text: rows from 0, columns in Unicode code points from 0, lines end at `\n`, `\r\n` or `\r`. */
interface RowColumn {
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
export function offsetOf(text: string, { row, column }: RowColumn): number | null {
  let start = 0;
  LINE_BREAK.lastIndex = 0;
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

/**
 * Return what to mark for an error at `line` and `column`, both from 1: the word at that place, the character if there
 * is no word, or the whole line if the column is unknown.
 */
export function errorMark(text: string, line: number, column: number | null): Mark | null {
  const row = line - 1;
  if (row < 0) return null;
  if (column === null) {
    const start = offsetOf(text, { row, column: 0 });
    return start === null ? null : wholeLine(text, start);
  }
  const at = offsetOf(text, { row, column: column - 1 });
  if (at === null) return null;
  WORD.lastIndex = at;
  if (WORD.test(text)) return { from: at, to: WORD.lastIndex };
  const end = lineEnd(text, at);
  // At the end of a line or text there is nothing to underline, so the last character before it is marked.
  return at < end ? { from: at, to: at + 1 } : { from: Math.max(0, at - 1), to: at };
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
