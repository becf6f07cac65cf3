/** Why a statement has no result, in the terms of the API (Contract editor 3.4). */
import type { Schemas } from "../api/client.ts";
import { ApiError, asApiError, isRecord } from "../api/errors.ts";

export type QueryStatus = Schemas["QueryStatus"];
export type Failure = Schemas["StatementFailure"];

export interface StatementProblem {
  code: string;
  message: string;
  /** Position of the error in the text that was submitted, both from 1; null if the data source gives none. */
  line: number | null;
  column: number | null;
  sqlstate: string | null;
  /** Of a script that runs as a whole: the index of the statement that failed. */
  statementId: number | null;
}

/** Return the problem that the body of a failed operation describes. */
export function problemOf(failure: Failure): StatementProblem {
  const start = startOf(failure);
  const { line, column } = failure;
  return {
    code: failure.code,
    message: failure.message,
    line: line === null ? null : line + start.row,
    column: line === 1 && column !== null ? column + start.column : column,
    sqlstate: failure.sqlstate ?? null,
    statementId: failure.statement_id ?? null,
  };
}

/** Return the problem of a call that failed before or without a statement. */
export function problemOfCall(problem: unknown): StatementProblem {
  const { code, message } = asApiError(problem);
  return { code, message, line: null, column: null, sqlstate: null, statementId: null };
}

/** Where the first character of the failed statement is in the submitted text, both from 0. */
function startOf(failure: Failure): { row: number; column: number } {
  const part = failure.query_status.statements?.find((one) => one.statement_id === failure.statement_id);
  if (part === undefined) return failure.handle.start;
  const { row, column } = part.start;
  // `start.column` is that after the previous terminator, or 0 (Contract editor 5.2): blanks may follow.
  const line = [...(failure.handle.statement.split(/\r\n|[\r\n]/)[row] ?? "")].slice(column);
  return {
    row,
    column:
      column +
      Math.max(
        0,
        line.findIndex((letter) => letter.trim() !== ""),
      ),
  };
}

/** Return the body of an error that reports the outcome of an operation, or null if the call itself failed. */
export function failureOf(problem: unknown): Failure | null {
  return problem instanceof ApiError && isFailure(problem.body) ? problem.body : null;
}

export function isFailure(body: unknown): body is Failure {
  return isRecord(body) && isRecord(body.query_status) && isRecord(body.handle) && typeof body.code === "string";
}

export function hasStatus(body: unknown): body is { status: number; query_status: QueryStatus } {
  return isRecord(body) && isRecord(body.query_status) && typeof body.query_status.state === "string";
}

export function isActive(state: QueryStatus["state"]): boolean {
  return state === "waiting" || state === "running";
}
