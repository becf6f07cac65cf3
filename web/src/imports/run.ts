/** An import that was started: an operation of the server, its counts and its rejected rows (Contract importer 13.7). */
import { effect, signal } from "@preact/signals";
import { session } from "../app/session.ts";
import { attachExecution, type Execution } from "../results/execution.ts";

export interface ImportRun {
  fileName: string;
  /** The table with its database, as the server names it. */
  table: string;
  tableName: string;
  /** The id of the connector. */
  connector: string;
  database: string;
  /** Shows the new table. */
  statement: string;
  execution: Execution;
}

/** The numbers of rows in the file, as decimal texts. */
export interface ImportCounts {
  read: string;
  loaded: string;
  rejected: string;
}

const REJECTED = "Bad row: ";

/** The import that this page follows. It goes on on the server when the page is closed. */
export const run = signal<ImportRun | null>(null);

export function follow(operationId: string, about: Omit<ImportRun, "execution">): void {
  run.value?.execution.dispose();
  run.value = { ...about, execution: attachExecution(operationId) };
}

/** Stop following the import. It goes on, and the history lists it. */
export function leave(): void {
  run.value?.execution.dispose();
  run.value = null;
}

/** Return the counts of the only row of the result: `rows_read`, `rows_loaded`, `rows_bad`, `table`. */
export function countsOf(row: readonly unknown[] | undefined): ImportCounts | null {
  if (row === undefined) return null;
  const [read, loaded, rejected] = row.slice(0, 3).map(String);
  if (read === undefined || loaded === undefined || rejected === undefined) return null;
  return { read, loaded, rejected };
}

/** Return the rejected rows that the log lists, with record, column and reason. */
export function rejectedRows(lines: readonly string[]): string[] {
  return lines.flatMap((line) => {
    const start = line.indexOf(REJECTED);
    return start < 0 ? [] : [line.slice(start + REJECTED.length)];
  });
}

// The next user of this page must not see the import of the one before.
effect(() => {
  if (!session.isLoggedIn.value) leave();
});
