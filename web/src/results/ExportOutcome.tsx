import { useLocation } from "preact-iso";
import { connectors } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import { selectStatement } from "../catalog/names.ts";
import { openTab } from "../editor/openTab.ts";
import { Button } from "../ui/Button.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import styles from "./ExportDialog.module.css";
import type { Execution } from "./execution.ts";
import { type Exported, exportedBy, type TableTarget } from "./exports.ts";

interface Props {
  execution: Execution;
  table: TableTarget;
  onLeave: () => void;
}

/** The progress of an export, then what it has written and where. */
export function ExportOutcome({ execution, table, onLeave }: Props) {
  const error = execution.error.value;
  if (error !== null) return <ErrorMessage problem={new Error(error.message)} />;
  if (execution.isActive.value) {
    const place = execution.queuePosition.value;
    return (
      <div class={styles.fields} role="status">
        <span>{place === null ? "Writing…" : `Waiting: place ${place} in the queue`}</span>
        <progress class={styles.progress} max={100} value={execution.progress.value} aria-label="Progress" />
      </div>
    );
  }
  const unreadable = execution.rows.value?.problem.value;
  if (unreadable) return <ErrorMessage problem={unreadable} />;
  const exported = exportedBy(execution);
  if (exported === null) return <Loading label="Loading the outcome" />;
  return exported.path === null ? (
    <TableOutcome exported={exported} target={table} onLeave={onLeave} />
  ) : (
    <FileOutcome exported={exported} path={exported.path} />
  );
}

function FileOutcome({ exported, path }: { exported: Exported; path: string }) {
  return (
    <p role="status">
      {rowsText(exported)} written to{" "}
      <a href={`${at("/files")}?path=${encodeURIComponent(path)}`}>
        <code>{path}</code>
      </a>
      .
    </p>
  );
}

function TableOutcome({ exported, target, onLeave }: { exported: Exported; target: TableTarget; onLeave: () => void }) {
  const { route } = useLocation();
  const connector = connectors.value.find(({ id }) => id === target.connector);
  const open = () => {
    const { database, table } = target;
    const statement = connector && selectStatement(connector, database, table);
    openTab({ statement, connector: target.connector, database });
    onLeave();
    route(at("/editor"));
  };
  return (
    <div class={styles.fields} role="status">
      <p>
        {rowsText(exported)} written to the table <code>{exported.table}</code> of {connector?.displayName}.
      </p>
      <div>
        <Button onClick={open}>Open the table in the editor</Button>
      </div>
    </div>
  );
}

function rowsText({ rows }: Exported): string {
  return `${Number(rows).toLocaleString("en")} ${rows === "1" ? "row is" : "rows are"}`;
}
