/** Runs of the text of a tab: what is sent, and where an error of it is in the text. */
import type { Connector } from "../app/config.ts";
import { forget } from "../catalog/store.ts";
import { attachExecution, type Execution, startExecution } from "../results/execution.ts";
import type { StatementProblem } from "../results/problem.ts";
import { type Bound, bind } from "./sql/parameters.ts";
import { errorMark, type Mark } from "./sql/positions.ts";
import { split, statementAt } from "./sql/statements.ts";
import type { Run, TabContent } from "./tabContent.ts";
import type { EditorTab } from "./tabs.ts";

/** A part of the text that is run. */
export interface Target {
  from: number;
  to: number;
  /** Whether it has several statements, which run in order. */
  isScript: boolean;
}

const CHANGES_OBJECTS = /\b(create|drop|alter|rename|truncate|attach|detach|import|load|refresh|comment|use)\b/i;

/** Return what runs: the selection if there is one, else the statement at the cursor. Null if there is none. */
export function targetAt(text: string, dialect: string, selection: { from: number; to: number }): Target | null {
  if (selection.from < selection.to) return wholeOf(text, dialect, selection.from, selection.to);
  const span = statementAt(text, split(text, dialect), selection.from);
  return span && { from: span.from, to: span.to, isScript: false };
}

/** Return all statements of a part of the text. */
export function wholeOf(text: string, dialect: string, from = 0, to = text.length): Target | null {
  const spans = split(text.slice(from, to), dialect);
  const first = spans[0];
  const last = spans.at(-1);
  if (!first || !last) return null;
  return { from: from + first.from, to: from + last.to, isScript: spans.length > 1 };
}

/** Return what was run, as long as the text still has it. */
export function targetOfRun(text: string, dialect: string, run: Run | null): Target | null {
  const from = run && sourceStart(text, run);
  return run === null || from === null ? null : wholeOf(text, dialect, from, from + run.source.length);
}

/** Run a part of the text of a tab, and show it there. The operation is stored as soon as it has an id. */
export function runTarget(tab: EditorTab, connector: Connector, target: Target, bound: Bound): Execution {
  const { text, database } = tab.content.peek();
  const source = text.slice(target.from, target.to);
  const execution = startExecution({
    connector: connector.id,
    statement: bound.text,
    database: database || undefined,
    parameters: bound.values ?? undefined,
    runAll: target.isScript,
  });
  show(tab, execution);
  const stop = execution.operationId.subscribe((operationId) => {
    if (operationId === null) return;
    tab.update({ run: { operationId, from: target.from, source } });
    queueMicrotask(() => stop());
  });
  const forgetNames = () => forget(connector.id);
  if (CHANGES_OBJECTS.test(bound.text)) execution.ended().then(forgetNames, forgetNames);
  return execution;
}

/** Show the last run of a tab again, after a reload or from a link. */
export function attachRun(tab: EditorTab): void {
  const { run } = tab.content.peek();
  if (run !== null && tab.execution.peek() === null) show(tab, attachExecution(run.operationId));
}

function show(tab: EditorTab, execution: Execution): void {
  tab.execution.peek()?.dispose();
  tab.execution.value = execution;
}

/**
 * Return what to mark in the text of a tab for the error of its last run, or null if the place is unknown or the
 * statement was changed since.
 */
export function markOf(
  { text, run, parameters }: Pick<TabContent, "text" | "run" | "parameters">,
  dialect: string,
  error: Pick<StatementProblem, "line" | "column">,
): Mark | null {
  if (run === null || error.line === null) return null;
  const from = sourceStart(text, run);
  if (from === null) return null;
  const bound = bind(run.source, dialect, parameters);
  const sent = errorMark(bound.text, error.line, error.column);
  if (sent === null) return null;
  const mark = { from: from + bound.toSource(sent.from), to: from + bound.toSource(sent.to) };
  return { from: mark.from, to: Math.max(mark.to, mark.from + 1) };
}

/** Return where the text that was run is now; null if it was changed, or is there several times at other places. */
function sourceStart(text: string, { from, source }: Run): number | null {
  if (source === "") return null;
  if (text.startsWith(source, from)) return from;
  const found = text.indexOf(source);
  return found >= 0 && text.indexOf(source, found + 1) < 0 ? found : null;
}
