/** The rows that a chart is made of: the first ones, or all of them through DuckDB. */
import { ApiError } from "../api/errors.ts";
import { connectors } from "../app/config.ts";
import { startExecution } from "../results/execution.ts";
import type { Column, RowSource } from "../results/rows.ts";
import type { Frame, Row } from "./frame.ts";
import { type ChartSpec, MAX_POINTS } from "./spec.ts";
import { frameFromSql, statementOf } from "./sql.ts";

/** Rows of the page: as many as the first chart needs no statement for. */
export const PAGE_ROWS = 10_000;
const CALL_ROWS = 5_000;

/** `page`: the first 10,000 rows. `many`: the first 100,000. `all`: every row, computed by DuckDB. */
export type Scope = "page" | "many" | "all";

/** Return the connector whose statements may read this result as a table, or null (Contract editor 6.5). */
export function readerOf(rows: RowSource): string | null {
  // The table of an operation with several statements has the rows of its last one only.
  if (rows.statementId !== null) return null;
  return connectors.value.find((one) => one.dialect === "duckdb")?.id ?? null;
}

/** Return the first rows, up to `count`. Throws ApiError. */
export async function firstRows(rows: RowSource, count: number, signal: AbortSignal): Promise<Row[]> {
  const read: Row[] = [];
  while (read.length < count) {
    const batch = await rows.read(read.length, Math.min(count, read.length + CALL_ROWS), signal);
    for (const row of batch) read.push(row);
    if (batch.length < CALL_ROWS) break;
  }
  return read;
}

/** Compute the points of all rows by a statement of its own, which is canceled if the chart goes. Throws ApiError. */
export async function frameOfAll(
  rows: RowSource,
  reader: string,
  columns: readonly Column[],
  spec: ChartSpec,
  signal: AbortSignal,
): Promise<Frame> {
  const statement = statementOf(rows.operationId, columns, spec);
  const execution = startExecution({ connector: reader, statement, limit: MAX_POINTS, isUnlisted: true });
  const stop = () => void execution.cancel().catch(() => undefined);
  signal.addEventListener("abort", stop);
  try {
    await execution.ended(signal);
    const source = execution.rows.value;
    const problem = execution.error.value;
    if (problem !== null || source === null) {
      throw new ApiError(0, problem?.code ?? "no_rows", problem?.message ?? "The statement returned no rows.");
    }
    return frameFromSql(await firstRows(source, MAX_POINTS, signal), columns, spec);
  } finally {
    signal.removeEventListener("abort", stop);
    if (!signal.aborted) execution.dispose();
  }
}
