import { FileText, X } from "lucide-preact";
import { useRef, useState } from "preact/hooks";
import { ApiError } from "../api/errors.ts";
import { newKey } from "../api/keys.ts";
import { connectors } from "../app/config.ts";
import { selectStatement } from "../catalog/names.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { bytesText, countText } from "../ui/texts.ts";
import { useDebounced } from "../ui/useDebounced.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { ColumnsTable } from "./ColumnsTable.tsx";
import { changed, columnProblems, importColumns } from "./columns.ts";
import styles from "./DraftForm.module.css";
import { ReadingFields } from "./ReadingFields.tsx";
import { fileTypeLabel, type Preview, readingQuery } from "./reading.ts";
import { follow } from "./run.ts";
import { createTable, type Inspection, inspect, sqlTypes } from "./server.ts";
import { change, changeReading, changeTarget, type Draft, discard } from "./state.ts";
import { TargetFields } from "./TargetFields.tsx";
import { createTableBody, IF_EXISTS } from "./target.ts";
import { warningTexts } from "./warnings.ts";

/** The form of an import: how the file is read, which columns the table has, and which table it is. */
export function DraftForm({ draft }: { draft: Draft }) {
  const { source, metadata, reading, target } = draft;
  const wanted = JSON.stringify([readingQuery(source, reading), target.connector]);
  const key = useDebounced(wanted);
  const { value, problem, isLoading, reload } = useLoaded(key, async (signal) => {
    return { key, inspection: await inspect(source, reading, target.connector, signal) };
  });
  // Columns that were read in another way do not fit the reading that would be sent with them.
  const isCurrent = value?.key === wanted && problem === null;
  const inspection = value?.inspection ?? null;
  const types = useLoaded(target.connector, (signal) => sqlTypes(target.connector, signal));
  const submission = useSubmission(draft, inspection);
  const warnings = warningTexts(metadata, inspection?.preview ?? null);
  // This is no form element: Enter in the name of a column or in one of its dialogs would start the import.
  return (
    <div class={styles.form}>
      <div class={styles.side}>
        <FileHead draft={draft} />
        <ReadingFields
          metadata={metadata}
          reading={reading}
          hasHeader={reading.hasHeader ?? inspection?.hasHeader ?? false}
          onChange={changeReading}
        />
        <TargetFields target={target} problem={submission.problems.table} onChange={changeTarget} />
        <div class={styles.submit}>
          {submission.failure ? <ErrorMessage problem={submission.failure} /> : null}
          <Button kind="primary" disabled={!isCurrent || submission.isBusy} onClick={() => void submission.submit()}>
            {IF_EXISTS.find((one) => one.value === target.ifExists)?.action ?? ""}
          </Button>
        </div>
      </div>
      <section class={styles.main} aria-label="Columns and first rows" aria-busy={isLoading}>
        {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
        {types.problem ? <ErrorMessage problem={types.problem} onRetry={types.reload} /> : null}
        {warnings.length > 0 && !problem ? <Warnings texts={warnings} /> : null}
        {inspection === null && !problem ? <Loading label="Reading the first rows" /> : null}
        {inspection === null ? null : (
          <Columns draft={draft} preview={inspection.preview} types={types.value ?? []} submission={submission} />
        )}
      </section>
    </div>
  );
}

function FileHead({ draft: { source, reading } }: { draft: Draft }) {
  const size = source.sizeBytes === null ? source.path : bytesText(source.sizeBytes);
  return (
    <div class={styles.file}>
      <FileText size={22} aria-hidden />
      <div class={styles.fileText}>
        <h1 class={styles.fileName}>{source.name}</h1>
        <div class={styles.soft}>{`${fileTypeLabel(reading.fileType)} · ${size}`}</div>
      </div>
      <IconButton label="Choose another file" onClick={discard}>
        <X size={18} aria-hidden />
      </IconButton>
    </div>
  );
}

function Warnings({ texts }: { texts: readonly string[] }) {
  return (
    <ul class={styles.warnings} aria-label="Warnings">
      {texts.map((text) => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  );
}

interface ColumnsProps {
  draft: Draft;
  preview: Preview;
  types: readonly string[];
  submission: Submission;
}

function Columns({ draft, preview, types, submission }: ColumnsProps) {
  const kept = importColumns(preview.columns, draft.edits).length;
  const { columns, preview_data: rows } = preview;
  const general = submission.problems.columns.get(null);
  return (
    <>
      <div class={styles.bar}>
        <h2>
          {kept === columns.length ? countText(kept, "column") : `${kept} of ${countText(columns.length, "column")}`}
        </h2>
        <span class={styles.soft}>
          {rows.length === 0 ? "The file has no rows" : `First ${countText(rows.length, "row")}`}
        </span>
        {general ? (
          <span class={styles.problem} role="alert">
            {general}
          </span>
        ) : null}
      </div>
      <ColumnsTable
        columns={columns}
        rows={rows}
        types={types}
        edits={draft.edits}
        problems={submission.problems.columns}
        onEdit={(source, edit) => {
          submission.forget(source);
          change({ edits: changed(draft.edits, source, edit) });
        }}
      />
      {columns.length === 0 ? <EmptyState title="The file has no columns." /> : null}
    </>
  );
}

interface Problems {
  table: string | undefined;
  /** By the position of the column in the file; null is about all columns. */
  columns: ReadonlyMap<number | null, string>;
}

interface Submission {
  problems: Problems;
  failure: unknown;
  isBusy: boolean;
  submit: () => Promise<void>;
  /** Drop the server's message about a column that was changed. */
  forget: (source: number) => void;
}

interface Refusal {
  source: number;
  message: string;
}

/** Check the form and start the import. A message of the server about one column is shown at that column. */
function useSubmission(draft: Draft, inspection: Inspection | null): Submission {
  const [isTried, setTried] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);
  const [refused, setRefused] = useState<Refusal | null>(null);
  const [isBusy, setBusy] = useState(false);
  const attempt = useRef({ body: "", key: "" });

  const submit = async () => {
    if (inspection === null || isBusy) return;
    setTried(true);
    setFailure(null);
    setRefused(null);
    if (hasProblems(problemsOf(draft, inspection, null))) return;
    const { columns } = inspection.preview;
    const body = createTableBody({ ...draft, hasHeader: inspection.hasHeader }, columns, draft.edits, draft.target);
    setBusy(true);
    try {
      const started = await createTable(body, keyOf(attempt.current, JSON.stringify(body)));
      follow(started.history_uuid, aboutRun(draft, started.table));
    } catch (problem) {
      const refusal = refusalOf(problem, body.columns ?? []);
      setRefused(refusal);
      setFailure(refusal === null ? problem : null);
    } finally {
      setBusy(false);
    }
  };
  return {
    problems: isTried && inspection !== null ? problemsOf(draft, inspection, refused) : NO_PROBLEMS,
    failure,
    isBusy,
    submit,
    forget: (source) => setRefused((before) => (before?.source === source ? null : before)),
  };
}

/** Return the key of an attempt. After a cut the same request has the same key, so that it starts no second import. */
function keyOf(attempt: { body: string; key: string }, body: string): string {
  if (attempt.body !== body) Object.assign(attempt, { body, key: newKey() });
  return attempt.key;
}

const NO_PROBLEMS: Problems = { table: undefined, columns: new Map() };

function hasProblems({ table, columns }: Problems): boolean {
  return table !== undefined || columns.size > 0;
}

function problemsOf({ edits, target }: Draft, { preview }: Inspection, refused: Refusal | null): Problems {
  const columns = columnProblems(preview.columns, edits);
  if (refused !== null) columns.set(refused.source, refused.message);
  return { table: target.table.trim() === "" ? "Enter a name." : undefined, columns };
}

function aboutRun(draft: Draft, table: string) {
  const { source, target } = draft;
  const connector = connectors.value.find(({ id }) => id === target.connector);
  const { connector: id, database } = target;
  const tableName = target.table.trim();
  const statement = connector ? selectStatement(connector, database, tableName) : "";
  return { fileName: source.name, table, tableName, connector: id, database, statement };
}

/** Return what the server says about one column, or null if it refused something else. */
function refusalOf(problem: unknown, sent: ReadonlyArray<{ source: number | string }>): Refusal | null {
  if (!(problem instanceof ApiError) || problem.code !== "invalid_columns") return null;
  const position = problem.body.column;
  const source = typeof position === "number" ? sent[position - 1]?.source : undefined;
  return typeof source === "number" ? { source, message: problem.message } : null;
}
