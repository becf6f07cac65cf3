import { Download } from "lucide-preact";
import { config } from "../app/config.ts";
import { startDownload } from "../app/download.ts";
import { Button } from "../ui/Button.tsx";
import { Menu } from "../ui/Menu.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import type { Execution } from "./execution.ts";
import styles from "./ResultPanel.module.css";
import type { RowSource } from "./rows.ts";

/** The formats of Contract editor 8.2. */
const FORMATS = [
  { format: "csv", label: "CSV" },
  { format: "tsv", label: "TSV (tab-separated)" },
  { format: "xlsx", label: "Excel (xlsx)" },
  { format: "parquet", label: "Parquet" },
  { format: "arrow", label: "Arrow stream" },
  { format: "feather", label: "Feather (Arrow file)" },
  { format: "ndjson", label: "JSON lines" },
] as const;

/** A menu with the formats in which a result can be downloaded. Nothing is shown while there is no complete result. */
export function DownloadMenu({ execution }: { execution: Execution }) {
  const rows = execution.rows.value;
  if (rows === null || rows.rowCount.value === null || execution.isActive.value) return null;
  const content = (
    <>
      <Download size={16} aria-hidden />
      <span class={styles.word}>Download</span>
    </>
  );
  if (!config.value?.storage_browser.enable_file_download_button) {
    return (
      <Button
        kind="quiet"
        aria-label="Download"
        onClick={() => notify("You do not have the right to download results.")}
      >
        {content}
      </Button>
    );
  }
  return (
    <Menu
      label="Download"
      hasLabel
      items={FORMATS.map(({ format, label }) => ({ label, onSelect: () => void download(rows, format) }))}
    >
      {content}
    </Menu>
  );
}

async function download(rows: RowSource, format: string): Promise<void> {
  const query = new URLSearchParams({ format });
  if (rows.statementId !== null) query.set("statement_id", String(rows.statementId));
  // The page already says that the result was cut.
  if (rows.truncation.value !== null) query.set("allow_truncated", "true");
  try {
    await startDownload(`/api/v1/editor/download/${rows.operationId}?${query}`);
    if (rows.truncation.value !== null) notify("The file contains only the stored rows: the result was truncated.");
  } catch (problem) {
    notifyProblem(problem);
  }
}
