import { useId, useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { CheckField } from "../ui/Field.tsx";
import { ErrorMessage } from "../ui/States.tsx";
import { Tabs } from "../ui/Tabs.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import styles from "./ExportDialog.module.css";
import { ExportOutcome } from "./ExportOutcome.tsx";
import { exportFile, exportTable, type FileTarget, type Source, type TableTarget } from "./exports.ts";
import { FileTargetFields } from "./FileTargetFields.tsx";
import type { RowSource } from "./rows.ts";
import { initialTable, TableTargetFields } from "./TableTargetFields.tsx";
import { useExecution } from "./useExecution.ts";

interface Props {
  rows: RowSource;
  onClose: () => void;
}

const TABS = [
  { key: "file", label: "To a file" },
  { key: "table", label: "To a table" },
] as const;

const FIRST_FILE: FileTarget = {
  directory: "",
  name: "result.csv",
  format: "csv",
  compression: "none",
  header: true,
  guard: false,
  splitRows: null,
  replaces: false,
};

/** Export a stored result to a store or a table, and follow the export to its end. It goes on if the dialog is closed. */
export function ExportDialog({ rows, onClose }: Props) {
  const [kind, setKind] = useState<(typeof TABS)[number]["key"]>("file");
  const [file, setFile] = useState(FIRST_FILE);
  const [table, setTable] = useState<TableTarget>(initialTable);
  const [allowsTruncated, setAllowsTruncated] = useState(false);
  const [operationId, setOperationId] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const form = useId();
  const truncation = rows.truncation.value;
  const submit = async () => {
    const source: Source = { operationId: rows.operationId, statementId: rows.statementId, allowsTruncated };
    setBusy(true);
    setProblem(null);
    try {
      setOperationId(await (kind === "file" ? exportFile(source, file) : exportTable(source, table)));
    } catch (failure) {
      setProblem(failure);
    } finally {
      setBusy(false);
    }
  };
  if (operationId !== null) {
    return <FollowedExport {...{ operationId, table, onClose }} onAgain={() => setOperationId(null)} />;
  }
  const isComplete = kind === "file" ? file.directory !== "" && file.name !== "" : table.table !== "";
  return (
    <Dialog
      title="Export the result"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" form={form} disabled={isBusy || !isComplete}>
            Export
          </Button>
        </>
      }
    >
      <Tabs label="Target" tabs={TABS} selected={kind} onSelect={setKind} />
      <form
        id={form}
        class={styles.fields}
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        {kind === "file" ? (
          <FileTargetFields target={file} onChange={setFile} />
        ) : (
          <TableTargetFields target={table} onChange={setTable} />
        )}
        {truncation ? (
          <CheckField
            label="Export the stored rows, although the result is cut"
            checked={allowsTruncated}
            onChange={(event) => setAllowsTruncated(event.currentTarget.checked)}
          />
        ) : null}
      </form>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </Dialog>
  );
}

interface FollowedProps {
  operationId: string;
  table: TableTarget;
  onClose: () => void;
  onAgain: () => void;
}

function FollowedExport({ operationId, table, onClose, onAgain }: FollowedProps) {
  const execution = useExecution(operationId);
  const isActive = execution.isActive.value;
  return (
    <Dialog
      title="Export"
      onClose={onClose}
      actions={
        <>
          {isActive ? (
            <Button disabled={execution.isCanceling.value} onClick={() => void execution.cancel().catch(notifyProblem)}>
              Cancel the export
            </Button>
          ) : null}
          {execution.error.value ? <Button onClick={onAgain}>Change the target</Button> : null}
          <Button kind="primary" onClick={onClose}>
            {isActive ? "Continue in the background" : "Done"}
          </Button>
        </>
      }
    >
      <ExportOutcome execution={execution} table={table} onLeave={onClose} />
    </Dialog>
  );
}
