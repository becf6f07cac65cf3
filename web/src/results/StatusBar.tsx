import { CircleCheck, CircleX, Hourglass, LoaderCircle, Square } from "lucide-preact";
import { Button } from "../ui/Button.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { durationText, rowsText } from "../ui/texts.ts";
import type { Execution } from "./execution.ts";
import styles from "./ResultPanel.module.css";

/** State, time and number of rows of a statement, and the button that cancels it. */
export function StatusBar({ execution }: { execution: Execution }) {
  const isActive = execution.isActive.value;
  return (
    <div class={styles.status}>
      <StateIcon execution={execution} />
      <span class={styles.state} role="status">
        {stateText(execution)}
      </span>
      {isActive ? (
        <>
          <progress
            class={styles.progress}
            max={100}
            value={execution.progress.value > 0 ? execution.progress.value : undefined}
            aria-label="Progress"
          />
          <Button
            kind="danger"
            disabled={execution.isCanceling.value}
            onClick={() => void execution.cancel().catch(notifyProblem)}
          >
            <Square size={13} aria-hidden />
            {execution.isCanceling.value ? "Canceling…" : "Cancel"}
          </Button>
        </>
      ) : null}
      <Elapsed execution={execution} />
    </div>
  );
}

/** A component of its own, so that the tenths of seconds render nothing else. */
function Elapsed({ execution }: { execution: Execution }) {
  const elapsed = execution.elapsedMs.value;
  return elapsed > 0 ? (
    <span class={styles.elapsed} title="Time since the statement was sent to the data source">
      {durationText(elapsed)}
    </span>
  ) : null;
}

const ICON = { size: 16, "aria-hidden": true } as const;

function StateIcon({ execution }: { execution: Execution }) {
  switch (execution.state.value) {
    case "waiting":
      return <Hourglass {...ICON} class={styles.quietIcon} />;
    case "submitting":
    case "running":
      return <LoaderCircle {...ICON} class={styles.turning} />;
    case "available":
    case "success":
      return <CircleCheck {...ICON} class={styles.goodIcon} />;
    default:
      return <CircleX {...ICON} class={styles.badIcon} />;
  }
}

function stateText(execution: Execution): string {
  const status = execution.status.value;
  if (execution.connection.value === "lost" && execution.isActive.value) {
    return status === null
      ? "The server does not answer. Trying again; keep this page open until the statement is submitted."
      : "The server does not answer. Trying again; the statement goes on without this page.";
  }
  switch (execution.state.value) {
    case "submitting":
      return "Submitting";
    case "waiting":
      return status?.queue_position ? `Waiting, place ${status.queue_position} in the queue` : "Waiting";
    case "running":
      return execution.rows.value?.knownRows.value ? `Running, ${rowsText(status?.rows ?? 0)} so far` : "Running";
    case "available":
      return finishedText(execution);
    case "success":
      return status?.modified_row_count ? `Done, ${rowsText(status.modified_row_count)} changed` : "Done";
    default:
      return STATES[execution.state.value] ?? "";
  }
}

function finishedText(execution: Execution): string {
  const rows = execution.rows.value?.rowCount.value ?? execution.status.value?.rows ?? 0;
  const age = execution.status.value?.reused_age_s;
  return age === undefined ? rowsText(rows) : `${rowsText(rows)}, from a stored result that is ${age} s old`;
}

const STATES: Record<string, string> = {
  failed: "Failed",
  canceled: "Canceled",
  timed_out: "Timed out",
  expired: "Result expired",
  closed: "Result deleted",
  unknown: "Not known",
};
