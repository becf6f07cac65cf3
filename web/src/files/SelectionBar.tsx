import { Ellipsis } from "lucide-preact";
import { startDownload } from "../app/download.ts";
import { Button } from "../ui/Button.tsx";
import { Menu, type MenuItem } from "../ui/Menu.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { numberText } from "../ui/texts.ts";
import * as changes from "./changes.ts";
import type { Intent } from "./dialogs.tsx";
import { downloadUrl } from "./downloads.ts";
import styles from "./files.module.css";
import type { Entry } from "./listing.ts";
import { isRestorable } from "./paths.ts";
import { MAX_SELECTED, type Selection } from "./selection.ts";
import { type Store, supports } from "./stores.ts";

interface Props {
  selection: Selection;
  store: Store | undefined;
  inTrash: boolean;
  onIntent: (intent: Intent) => void;
  onChanged: () => void;
}

/** What can be done with the selected entries. */
export function SelectionBar({ selection, store, inTrash, onIntent, onChanged }: Props) {
  const entries = selection.entries.value;
  const [entry] = entries;
  if (!entry) return null;
  const isOne = entries.length === 1;
  const restorable = entries.filter((one) => isRestorable(one.path));
  const restore = () => void changes.restore(restorable).then(onChanged);
  return (
    <div class={styles.selection} role="toolbar" aria-label="Selected entries">
      <span class={styles.selected}>{selectedText(entries.length)}</span>
      {isOne && entry.type === "file" ? (
        <Button onClick={() => startDownload(downloadUrl(entry.path)).catch(notifyProblem)}>Download</Button>
      ) : null}
      {inTrash && restorable.length > 0 ? <Button onClick={restore}>Restore</Button> : null}
      {inTrash ? null : <Button onClick={() => onIntent({ kind: "move", entries })}>Move</Button>}
      <Button kind="danger" onClick={() => onIntent({ kind: "delete", entries })}>
        Delete
      </Button>
      <Menu label="More actions" items={itemsOf({ entries, entry, store, inTrash, onIntent })}>
        <Ellipsis size={18} aria-hidden />
      </Menu>
    </div>
  );
}

function selectedText(count: number): string {
  return count === MAX_SELECTED ? `${numberText(count)} selected, the most at once` : `${numberText(count)} selected`;
}

interface Context extends Pick<Props, "store" | "inTrash" | "onIntent"> {
  entries: readonly Entry[];
  entry: Entry;
}

function itemsOf({ entries, entry, store, inTrash, onIntent }: Context): readonly MenuItem[] {
  const isOne = entries.length === 1;
  const isFile = entry.type === "file";
  const hasReplication = isFile && supports(store, "replication");
  const items: ReadonlyArray<readonly [boolean, string, Intent]> = [
    [isOne && !inTrash, "Rename", { kind: "rename", entry }],
    [true, "Copy", { kind: "copy", entries }],
    [isOne && supports(store, "summary"), "Total size", { kind: "size", entry }],
    [supports(store, "permissions"), "Permissions", { kind: "permissions", entries }],
    [supports(store, "owners"), "Owner", { kind: "owner", entries }],
    [isOne && hasReplication, "Replication", { kind: "replication", entry }],
  ];
  return items.flatMap(([isOffered, label, intent]) =>
    isOffered ? [{ label, onSelect: () => onIntent(intent) }] : [],
  );
}
