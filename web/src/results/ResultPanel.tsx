import { useState } from "preact/hooks";
import { lazy } from "preact-iso";
import { Button } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { Tabs } from "../ui/Tabs.tsx";
import { rowsText } from "../ui/texts.ts";
import type { Execution } from "./execution.ts";
import { Grid } from "./Grid.tsx";
import { LogPanel } from "./LogPanel.tsx";
import { ResultActions } from "./ResultActions.tsx";
import styles from "./ResultPanel.module.css";
import type { RowSource } from "./rows.ts";
import { StatusBar } from "./StatusBar.tsx";

const ChartPanel = lazy(() => import("../charts/ChartPanel.tsx").then((module) => module.ChartPanel));

const TABS = [
  { key: "rows", label: "Rows" },
  { key: "chart", label: "Chart" },
  { key: "log", label: "Log" },
] as const;
type TabKey = (typeof TABS)[number]["key"];

interface Props {
  execution: Execution;
  /** Whether the result is shared by another user, whose statement and log are not shown. */
  isShared?: boolean;
  /** Runs the statement again; offered when its result is not stored any more. */
  onRunAgain?: () => void;
}

/** Progress, rows, chart and log of a statement. */
export function ResultPanel({ execution, isShared = false, onRunAgain }: Props) {
  const [tab, setTab] = useState<TabKey>("rows");
  const tabs = isShared ? TABS.filter(({ key }) => key !== "log") : TABS;
  const rows = execution.rows.value;
  return (
    <div class={styles.panel}>
      <div class={styles.bar}>
        <Tabs label="Result" tabs={tabs} selected={tab} onSelect={setTab} />
        <StatusBar execution={execution} />
        <div class={styles.actions}>
          <ResultActions execution={execution} isShared={isShared} />
        </div>
      </div>
      <Notices execution={execution} />
      <Parts execution={execution} />
      <Failure execution={execution} onRunAgain={onRunAgain} />
      <div class={styles.content} role="tabpanel" aria-label={TABS.find(({ key }) => key === tab)?.label}>
        {tab === "log" ? <LogPanel execution={execution} /> : null}
        {tab === "rows" ? <Rows execution={execution} /> : null}
        {tab === "chart" ? (
          rows === null ? (
            <EmptyState title="There are no rows to draw." />
          ) : (
            <ChartPanel execution={execution} rows={rows} />
          )
        ) : null}
      </div>
    </div>
  );
}

const LABELS: Record<string, string> = { submitting: "Submitting", waiting: "Waiting" };

function Rows({ execution }: { execution: Execution }) {
  const rows = execution.rows.value;
  if (rows !== null) return <RowsOf source={rows} />;
  if (execution.error.value !== null) return null;
  if (execution.isActive.value) return <Loading label={LABELS[execution.state.value] ?? "Running"} />;
  return <EmptyState title="The statement returned no rows.">{execution.status.value?.message}</EmptyState>;
}

function RowsOf({ source }: { source: RowSource }) {
  const columns = source.columns.value;
  const problem = source.problem.value;
  if (problem !== null) return <ErrorMessage problem={problem} />;
  if (columns === null) return <Loading label="Waiting for the first rows" />;
  if (source.rowCount.value === 0) {
    return <EmptyState title="No rows">{columns.map(({ name }) => name).join(", ")}</EmptyState>;
  }
  return <Grid key={`${source.operationId}/${source.statementId}`} source={source} columns={columns} />;
}

/** Why the statement has no result. The statements of a script before the one that failed may have rows. */
function Failure({ execution, onRunAgain }: Pick<Props, "execution" | "onRunAgain">) {
  const error = execution.error.value;
  const state = execution.state.value;
  if (error === null) return null;
  const place = [
    error.statementId === null ? "" : `Statement ${error.statementId + 1}`,
    error.line === null ? "" : `line ${error.line}`,
    error.column === null ? "" : `column ${error.column}`,
  ].filter(Boolean);
  return (
    <div class={styles.failure} role="alert">
      <div class={styles.failureText}>{error.message}</div>
      <div class={styles.failurePlace}>
        {[place.join(", "), error.code, error.sqlstate ? `SQLSTATE ${error.sqlstate}` : ""].filter(Boolean).join(" · ")}
      </div>
      {onRunAgain && (state === "expired" || state === "closed") ? (
        <div class={styles.failurePlace}>
          <Button onClick={onRunAgain}>Run again</Button>
        </div>
      ) : null}
    </div>
  );
}

/** Facts about the result that a reader of the rows must not miss. */
function Notices({ execution }: { execution: Execution }) {
  const rows = execution.rows.value;
  const status = execution.status.value;
  const truncation = status?.truncated ? status.message : rows?.truncation.value?.message;
  const notices = [
    execution.warning.value,
    truncation,
    rows?.isRetrying.value ? "The server does not answer. Rows come when it is back." : null,
  ].filter(Boolean);
  return notices.length === 0 ? null : (
    <div class={styles.notices}>
      {notices.map((text) => (
        <div key={text} class={styles.notice} role="status">
          {text}
        </div>
      ))}
    </div>
  );
}

/** The statements of a script; those with rows can be selected. */
function Parts({ execution }: { execution: Execution }) {
  const parts = execution.parts.value;
  if (parts.length < 2) return null;
  return (
    <nav class={styles.parts} aria-label="Statements">
      {parts.map((part) => (
        <button
          key={part.statement_id}
          type="button"
          class={styles.part}
          aria-pressed={part.statement_id === execution.shownPart.value}
          disabled={!part.has_result_set}
          title={part.message || undefined}
          onClick={() => execution.choosePart(part.statement_id)}
        >
          {part.statement_id + 1}
          <span class={styles.partText}>{partText(part)}</span>
        </button>
      ))}
    </nav>
  );
}

function partText(part: Execution["parts"]["value"][number]): string {
  if (part.state === "available") return rowsText(part.rows);
  if (part.state === "success")
    return part.modified_row_count ? `${rowsText(part.modified_row_count)} changed` : "done";
  return part.state.replace("_", " ");
}
