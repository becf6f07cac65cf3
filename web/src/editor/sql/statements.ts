/** The statements of a script, cut as the server cuts it (Contract editor 5.1). */
import { type LexicalRules, lexemeAt, lexicalRules } from "./scanner.ts";

/** A statement: the characters [from, to) without blanks around it and its terminator, which ends at `terminated`. */
export interface StatementSpan {
  from: number;
  to: number;
  terminated: number;
}

const DELIMITER_LINE = /DELIMITER[ \t]+(\S{1,15})(?!\S)[^\r\n]*/iy;
const TRIGGER = /^(?:EXPLAIN (?:QUERY PLAN )?)?CREATE (?:TEMP |TEMPORARY )?TRIGGER /;
const ROUTINE = /^CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) /;
const HEAD_WORDS = 6;

/** Return the statements of the text in order. Fragments with only blanks and comments are none. */
export function split(text: string, dialect: string): StatementSpan[] {
  const rules = lexicalRules(dialect);
  if (rules.isOneStatement) return trimmed(text, 0, text.length, text.length);
  const spans: StatementSpan[] = [];
  let terminator = ";";
  let at = 0;
  while (at < text.length) {
    const delimiter = rules.delimiterLines ? delimiterLine(text, at, rules) : null;
    if (delimiter) {
      terminator = delimiter.terminator;
      at = delimiter.end;
      continue;
    }
    const { end, hasContent } = fragment(text, at, terminator, rules);
    const terminated = Math.min(end + terminator.length, text.length);
    if (hasContent) spans.push(...trimmed(text, at, end, terminated));
    at = terminated;
  }
  return spans;
}

/**
 * Return the statement at an offset: the one that contains it or ends there, else the one before it on the same line,
 * else the next one, else the last.
 */
export function statementAt(text: string, spans: readonly StatementSpan[], offset: number): StatementSpan | null {
  let before: StatementSpan | null = null;
  for (const span of spans) {
    if (span.from <= offset && offset <= span.terminated) {
      // Directly before the next statement of the same line, as in `SELECT 1;|SELECT 2`, the next one is meant.
      const next = spans.find((one) => one.from === offset);
      return next ?? span;
    }
    if (span.from > offset) {
      const isSameLine = before !== null && !/[\r\n]/.test(text.slice(before.terminated, offset));
      return isSameLine ? before : span;
    }
    before = span;
  }
  return before;
}

function trimmed(text: string, from: number, to: number, terminated: number): StatementSpan[] {
  const fragment = text.slice(from, to);
  const start = from + (fragment.length - fragment.trimStart().length);
  const end = from + fragment.trimEnd().length;
  return start < end ? [{ from: start, to: end, terminated: terminated === text.length ? end : terminated }] : [];
}

function delimiterLine(text: string, from: number, rules: LexicalRules): { terminator: string; end: number } | null {
  DELIMITER_LINE.lastIndex = contentStart(text, from, rules);
  const terminator = DELIMITER_LINE.exec(text)?.[1];
  return terminator === undefined ? null : { terminator, end: DELIMITER_LINE.lastIndex };
}

function contentStart(text: string, from: number, rules: LexicalRules): number {
  let at = from;
  while (at < text.length) {
    const piece = lexemeAt(text, at, rules);
    if (piece.kind !== "blank" && piece.kind !== "comment") break;
    at = piece.to;
  }
  return at;
}

/** Find the terminator of the fragment that begins at `from`. Returns its offset, or the end of the text. */
function fragment(text: string, from: number, terminator: string, rules: LexicalRules) {
  const body = new Body(rules);
  let hasContent = false;
  let at = from;
  while (at < text.length) {
    if (text.startsWith(terminator, at) && !body.isOpen) break;
    const piece = lexemeAt(text, at, rules);
    if (piece.kind !== "blank" && piece.kind !== "comment") {
      hasContent = true;
      body.add(text.slice(piece.from, piece.to), piece.kind === "word");
    }
    // A terminator of several characters (mysql) may follow a word without a blank.
    at = piece.kind === "word" ? wordEnd(text, piece.from, piece.to, terminator) : piece.to;
  }
  return { end: Math.min(at, text.length), hasContent };
}

function wordEnd(text: string, from: number, to: number, terminator: string): number {
  if (terminator === ";") return to;
  const found = text.slice(from, to).indexOf(terminator);
  return found > 0 ? from + found : to;
}

/** Whether a `;` at this place is part of the statement: in parentheses (postgresql), triggers and routine bodies. */
class Body {
  #head = "";
  #headWords = 0;
  #parentheses = 0;
  #blocks = 0;
  #before = "";
  readonly #rules: LexicalRules;

  constructor(rules: LexicalRules) {
    this.#rules = rules;
  }

  get isOpen(): boolean {
    return this.#parentheses > 0 || this.#blocks > 0;
  }

  add(piece: string, isWord: boolean): void {
    const word = isWord ? piece.toUpperCase() : piece;
    if (this.#rules.parentheses) {
      if (piece === "(") this.#parentheses += 1;
      if (piece === ")") this.#parentheses = Math.max(0, this.#parentheses - 1);
    }
    if (isWord && this.#headWords < HEAD_WORDS) {
      this.#head += `${word} `;
      this.#headWords += 1;
    }
    if (isWord && this.#before !== "AS" && this.#before !== ".") this.#addKeyword(word);
    this.#before = word;
  }

  #addKeyword(word: string): void {
    if (this.#blocks > 0) {
      if (word === "CASE") this.#blocks += 1;
      if (word === "END") this.#blocks -= 1;
    } else if (this.#rules.triggers && word === "BEGIN" && TRIGGER.test(this.#head)) {
      this.#blocks = 1;
    } else if (this.#rules.atomicBodies && word === "ATOMIC" && this.#before === "BEGIN" && ROUTINE.test(this.#head)) {
      this.#blocks = 1;
    }
  }
}
