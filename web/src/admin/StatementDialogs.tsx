import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { dateText, durationText } from "../ui/texts.ts";
import { useAction } from "../ui/useAction.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import { type Details, isActive, type Statement, statementDetails, stateText, stopStatement } from "./statements.ts";

interface Props {
  statement: Statement;
  onClose: () => void;
}

/** The SQL of a statement and what is recorded about it. */
export function ShowDialog({ statement, onClose }: Props) {
  const { value, problem, reload } = useLoaded(statement.id, (signal) => statementDetails(statement.id, signal));
  return (
    <Dialog title={`Statement of ${statement.user}`} onClose={onClose} isWide>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading the statement" /> : null}
      {value ? <Shown details={value} /> : null}
    </Dialog>
  );
}

function Shown({ details }: { details: Details }) {
  const { statement } = details;
  const facts: ReadonlyArray<readonly [string, string]> = [
    ["State", stateText(statement)],
    ["Message", details.message],
    ["Stopped by", statement.canceled_by ?? ""],
    ["Id", statement.id],
    ["Connector", `${statement.connector} (${statement.dialect})`],
    ["Database", details.database ?? ""],
    ["Submitted", dateText(statement.submitted)],
    ["Time limit", dateText(details.deadline)],
    ["Waited", durationText(statement.queued_ms)],
    ["Total time", durationText(statement.elapsed_ms)],
    ["Instance", statement.server ?? ""],
  ];
  return (
    <>
      <dl class={styles.facts}>
        {facts
          .filter(([, text]) => text !== "")
          .map(([name, text]) => (
            <Fact key={name} name={name} text={text} />
          ))}
      </dl>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard */}
      <section class={styles.sql} aria-label="SQL" tabIndex={0}>
        <pre>{details.text}</pre>
      </section>
      {details.text_is_cut ? <p class={styles.soft}>The server has stored the beginning of the text only.</p> : null}
    </>
  );
}

function Fact({ name, text }: { name: string; text: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{text}</dd>
    </>
  );
}

interface StopProps extends Props {
  onStopped: () => void;
}

/** Asks before a statement is stopped. */
export function StopDialog({ statement, onClose, onStopped }: StopProps) {
  const { isBusy, problem, run } = useAction();
  const stop = async () => {
    const after = await stopStatement(statement.id);
    notify(isActive(after.state) ? "The statement stops when the data source confirms it." : endText(after));
    onStopped();
    onClose();
  };
  const actions = (
    <>
      <Button onClick={onClose}>Keep it running</Button>
      <Button kind="danger" disabled={isBusy} onClick={() => run(stop)}>
        Stop the statement
      </Button>
    </>
  );
  return (
    <Dialog title="Stop the statement?" onClose={onClose} actions={actions}>
      <p>
        The statement of {statement.user} on {statement.connector} is stopped at the data source. The user sees that you
        stopped it, and its rows are lost.
      </p>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </Dialog>
  );
}

function endText(statement: Statement): string {
  return statement.state === "canceled" ? "The statement was stopped." : "The statement had already ended.";
}
