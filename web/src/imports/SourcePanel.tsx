import { FileUp, FolderOpen } from "lucide-preact";
import { useRef, useState } from "preact/hooks";
import { config } from "../app/config.ts";
import { PathPicker } from "../files/PathPicker.tsx";
import { Button } from "../ui/Button.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { bytesText } from "../ui/texts.ts";
import styles from "./SourcePanel.module.css";
import { type Arrival, arrival, cancelArrival, openFile, openStored } from "./state.ts";

/** The choice of a file, and its upload. */
export function SourcePanel() {
  const now = arrival.value;
  return (
    <div class={styles.panel}>
      <h1>Import a file as a table</h1>
      {now.kind === "none" ? <Choice problem={now.problem} /> : <Progress now={now} />}
    </div>
  );
}

function Choice({ problem }: { problem: unknown }) {
  const input = useRef<HTMLInputElement>(null);
  const [isPicking, setPicking] = useState(false);
  const limit = config.value?.importer.max_local_file_size_upload_limit;
  return (
    <>
      {problem ? <ErrorMessage problem={problem} /> : null}
      <div class={styles.zone}>
        <FileUp size={40} aria-hidden class={styles.icon} />
        <p class={styles.lead}>Drop a file anywhere on this page</p>
        <div class={styles.buttons}>
          <Button kind="primary" onClick={() => input.current?.click()}>
            <FileUp size={16} aria-hidden />
            Choose a file
          </Button>
          <Button onClick={() => setPicking(true)}>
            <FolderOpen size={16} aria-hidden />
            Choose from a store
          </Button>
        </div>
        <input
          ref={input}
          type="file"
          hidden
          aria-label="File"
          onChange={({ currentTarget }) => {
            const file = currentTarget.files?.[0];
            if (file) void openFile(file);
            // The same file can be chosen again after it was changed.
            currentTarget.value = "";
          }}
        />
        <p class={styles.about}>
          CSV, TSV and other delimited text, Excel and OpenDocument, Parquet, Arrow, Avro, JSON Lines
          {limit === undefined ? "" : `; up to ${bytesText(limit)} from this computer`}
        </p>
      </div>
      {isPicking ? <StorePicker onClose={() => setPicking(false)} /> : null}
    </>
  );
}

function StorePicker({ onClose }: { onClose: () => void }) {
  const [path, setPath] = useState("");
  return (
    <FormDialog
      title="Choose a file"
      action="Choose"
      isDisabled={path === ""}
      onSubmit={() => void openStored(path)}
      onClose={onClose}
    >
      <PathPicker mode="file" value={path} onChange={setPath} />
    </FormDialog>
  );
}

function Progress({ now }: { now: Exclude<Arrival, { kind: "none" }> }) {
  return (
    <div class={styles.zone}>
      <p class={styles.lead}>{now.name}</p>
      {now.kind === "uploading" ? (
        <>
          <progress class={styles.progress} aria-label="Upload" max={now.totalBytes || 1} value={now.sentBytes} />
          <p class={styles.about} role="status">
            {`${bytesText(now.sentBytes)} of ${bytesText(now.totalBytes)} uploaded`}
          </p>
        </>
      ) : (
        <Loading label="Reading the beginning of the file" />
      )}
      <Button onClick={cancelArrival}>Cancel</Button>
    </div>
  );
}
