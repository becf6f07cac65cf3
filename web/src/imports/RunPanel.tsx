import { CircleCheck, CircleX, Loader } from "lucide-preact";
import { useEffect, useRef } from "preact/hooks";
import { forget } from "../catalog/store.ts";
import { useOpenTab } from "../editor/openTab.ts";
import type { Execution } from "../results/execution.ts";
import { Button } from "../ui/Button.tsx";
import { ErrorMessage } from "../ui/States.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { durationText, numberText, rowsText } from "../ui/texts.ts";
import styles from "./RunPanel.module.css";
import { countsOf, type ImportCounts, type ImportRun, leave, rejectedRows } from "./run.ts";
import { execute } from "./server.ts";
import { discard } from "./state.ts";

/** The server converts and checks the whole file before it loads, which is the first part of the progress. */
const CHECKED_PERCENT = 40;

/** Follows an import to its end. */
export function RunPanel({ run }: { run: ImportRun }) {
  const { execution } = run;
  const state = execution.state.value;
  const counts = countsOf(execution.rows.value?.row(0));
  // The counts arrive with a page of their own, which changes the version.
  void execution.rows.value?.version.value;
  const isDone = state === "available" || state === "success";
  const problem = execution.error.value;
  const rejected = rejectedRows(execution.log.value.lines);
  const openTable = useOpenedTable(run, isDone ? counts : null);
  return (
    <div class={styles.panel}>
      <h1 class={styles.title}>{`${run.fileName} to ${run.table}`}</h1>
      <Status execution={execution} counts={counts} isDone={isDone} />
      {problem !== null && state !== "canceled" ? <ErrorMessage problem={new Error(problem.message)} /> : null}
      <div class={styles.buttons}>
        {execution.isActive.value ? (
          <Button
            kind="danger"
            disabled={execution.isCanceling.value}
            onClick={() => void execution.cancel().catch(notifyProblem)}
          >
            {execution.isCanceling.value ? "Canceling…" : "Cancel the import"}
          </Button>
        ) : null}
        {isDone ? (
          <Button kind="primary" onClick={openTable}>
            Show the rows
          </Button>
        ) : null}
        {!isDone && !execution.isActive.value ? <Button onClick={leave}>Back to the form</Button> : null}
        <Button onClick={startOver}>Import another file</Button>
      </div>
      {rejected.length > 0 ? <Rejected rows={rejected} counts={counts} /> : null}
      <Log lines={execution.log.value.lines} />
    </div>
  );
}

function startOver(): void {
  leave();
  discard();
}

function Status({ execution, counts, isDone }: { execution: Execution; counts: ImportCounts | null; isDone: boolean }) {
  const Icon = isDone ? CircleCheck : execution.isActive.value ? Loader : CircleX;
  const tone = isDone ? styles.good : execution.isActive.value ? styles.active : styles.bad;
  const progress = execution.progress.value;
  return (
    <>
      <div class={styles.status}>
        <Icon size={20} aria-hidden class={tone} />
        <span role="status">{statusText(execution, counts)}</span>
        <span class={styles.time}>{durationText(execution.elapsedMs.value)}</span>
      </div>
      {execution.isActive.value ? (
        <progress class={styles.progress} aria-label="Import" max={100} value={progress === 0 ? undefined : progress} />
      ) : null}
    </>
  );
}

function statusText(execution: Execution, counts: ImportCounts | null): string {
  if (execution.connection.value === "lost" && execution.isActive.value) return "The server does not answer; retrying";
  switch (execution.state.value) {
    case "submitting":
    case "waiting": {
      const place = execution.queuePosition.value;
      return place === null ? "Waiting" : `Waiting at place ${place}`;
    }
    case "running":
      return execution.progress.value < CHECKED_PERCENT ? "Reading and checking the rows" : "Loading the rows";
    case "available":
    case "success":
      return counts === null ? "Loaded" : loadedText(counts);
    case "canceled":
      return "Canceled; the table was not changed";
    default:
      return "Not imported";
  }
}

function loadedText({ loaded, rejected, read }: ImportCounts): string {
  if (rejected === "0") return `Loaded ${rowsText(loaded)}`;
  return `Loaded ${rowsText(loaded)} of ${numberText(read)}; ${rowsText(rejected)} rejected`;
}

function Rejected({ rows, counts }: { rows: readonly string[]; counts: ImportCounts | null }) {
  const more = counts === null ? 0 : Number(counts.rejected) - rows.length;
  return (
    <section class={styles.rejected} aria-label="Rejected rows">
      <h2>Rejected rows</h2>
      <ul>
        {rows.map((row, index) => (
          <li key={index}>{row}</li>
        ))}
      </ul>
      {more > 0 ? <p>{`${rowsText(more)} more`}</p> : null}
    </section>
  );
}

function Log({ lines }: { lines: readonly string[] }) {
  if (lines.length === 0) return null;
  return (
    <details>
      <summary>Log</summary>
      <pre class={styles.log}>{lines.join("\n")}</pre>
    </details>
  );
}

/** Return a function that shows the table in the editor. It is called once by itself if no row was rejected. */
function useOpenedTable(run: ImportRun, counts: ImportCounts | null): () => void {
  const openTab = useOpenTab();
  const isOpened = useRef(false);
  const open = async () => {
    if (isOpened.current) return;
    isOpened.current = true;
    const { connector, database, statement, tableName } = run;
    // A tab with the statement alone is still of use.
    const operationId = await execute(connector, statement, database).catch(notifyProblem);
    startOver();
    openTab({ connector, database, statement, title: tableName, operationId: operationId ?? undefined });
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: the end of the import opens the table, and nothing else
  useEffect(() => {
    if (counts === null) return;
    forget(run.connector);
    if (counts.rejected !== "0") return;
    notify(`${loadedText(counts)} into ${run.table}.`);
    void open();
  }, [counts === null]);
  return () => void open();
}
