import { HardDriveDownload, Link, Share2 } from "lucide-preact";
import { useState } from "preact/hooks";
import { linkOf } from "../queries/results.ts";
import { ShareDialog } from "../queries/ShareDialog.tsx";
import { Button, IconButton } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { DownloadMenu } from "./DownloadMenu.tsx";
import { ExportDialog } from "./ExportDialog.tsx";
import type { Execution } from "./execution.ts";
import styles from "./ResultPanel.module.css";

interface Props {
  execution: Execution;
  /** Whether another user has shared the result; only its owner can share it. */
  isShared?: boolean;
}

/** What can be done with a result: download, export, share, and copy its link. */
export function ResultActions({ execution, isShared = false }: Props) {
  const [open, setOpen] = useState<"export" | "share" | null>(null);
  const rows = execution.rows.value;
  const operationId = execution.operationId.value;
  if (rows === null || operationId === null) return null;
  const close = () => setOpen(null);
  return (
    <>
      <DownloadMenu execution={execution} />
      <Button kind="quiet" onClick={() => setOpen("export")} aria-label="Export" title="Export">
        <HardDriveDownload size={16} aria-hidden />
        <span class={styles.word}>Export</span>
      </Button>
      {isShared ? null : (
        <Button kind="quiet" onClick={() => setOpen("share")} aria-label="Share" title="Share">
          <Share2 size={16} aria-hidden />
          <span class={styles.word}>Share</span>
        </Button>
      )}
      <IconButton
        label="Copy the link of the result"
        onClick={() => void copyText(linkOf(operationId), "Link copied.")}
      >
        <Link size={16} aria-hidden />
      </IconButton>
      {open === "export" ? <ExportDialog rows={rows} onClose={close} /> : null}
      {open === "share" ? <ShareDialog subject={{ kind: "result", operationId, title: "" }} onClose={close} /> : null}
    </>
  );
}
