import { EllipsisVertical, Play } from "lucide-preact";
import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { connectors } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import { openDocument } from "../editor/openTab.ts";
import { IconButton } from "../ui/Button.tsx";
import { Menu, type MenuItem } from "../ui/Menu.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { ago, dateText } from "../ui/texts.ts";
import { DeleteDialog, MoveDialog, RenameDialog } from "./DocumentDialogs.tsx";
import { deleteDocument, type Entry, restoreDocument } from "./documents.ts";
import { runDocument } from "./open.ts";
import styles from "./queries.module.css";
import { ShareDialog } from "./ShareDialog.tsx";
import { VersionsDialog } from "./VersionsDialog.tsx";
import { VirtualList } from "./VirtualList.tsx";

interface Props {
  entries: readonly Entry[];
  isTrash: boolean;
  onChanged: () => void;
}

type Doing = "rename" | "move" | "share" | "versions" | "delete";
const ROW_PX = 58;

export function DocumentList({ entries, isTrash, onChanged }: Props) {
  const [doing, setDoing] = useState<{ what: Doing; entry: Entry } | null>(null);
  const { route } = useLocation();
  const show = (opened: Promise<unknown>) => opened.then(() => route(at("/editor")), notifyProblem);
  const act = (action: Promise<void>, text: string) =>
    action.then(() => {
      notify(text);
      onChanged();
    }, notifyProblem);
  const itemsOf = (entry: Entry): MenuItem[] => (isTrash ? trashItems(entry) : documentItems(entry));
  const trashItems = (entry: Entry): MenuItem[] => [
    { label: "Restore", onSelect: () => act(restoreDocument(entry.uuid), `Restored ${entry.name}.`) },
    { label: "Delete for ever", isDanger: true, onSelect: () => setDoing({ what: "delete", entry }) },
  ];
  const documentItems = (entry: Entry): MenuItem[] => {
    const mayEdit = entry.permission === "edit" || entry.permission === "manage";
    const mayManage = entry.permission === "manage";
    const start = (what: Doing) => () => setDoing({ what, entry });
    return [
      { label: "Open", onSelect: () => show(openDocument(entry.uuid)) },
      { label: "Rename", isDisabled: !mayEdit, onSelect: start("rename") },
      { label: "Move to a folder", isDisabled: !mayManage, onSelect: start("move") },
      { label: "Share", isDisabled: !mayManage, onSelect: start("share") },
      { label: "Versions", onSelect: start("versions") },
      {
        label: "Move to the trash",
        isDanger: true,
        isDisabled: !mayManage,
        onSelect: () => act(deleteDocument(entry.uuid, false), `${entry.name} is in the trash.`),
      },
    ];
  };
  return (
    <>
      <VirtualList label={isTrash ? "Trash" : "Saved queries"} count={entries.length} rowHeight={ROW_PX}>
        {(index) => {
          const entry = entries[index];
          return entry ? (
            <DocumentRow
              entry={entry}
              isTrash={isTrash}
              items={itemsOf(entry)}
              onOpen={() => show(openDocument(entry.uuid))}
              onRun={() => show(runDocument(entry.uuid))}
            />
          ) : null;
        }}
      </VirtualList>
      {doing ? <DoingDialog {...doing} onClose={() => setDoing(null)} onChanged={onChanged} /> : null}
    </>
  );
}

interface DoingProps {
  what: Doing;
  entry: Entry;
  onClose: () => void;
  onChanged: () => void;
}

function DoingDialog({ what, entry, onClose, onChanged }: DoingProps) {
  const props = { entry, onClose, onChanged };
  switch (what) {
    case "rename":
      return <RenameDialog {...props} />;
    case "move":
      return <MoveDialog {...props} />;
    case "delete":
      return <DeleteDialog {...props} />;
    case "versions":
      return <VersionsDialog {...props} />;
    case "share":
      return <ShareDialog subject={{ kind: "document", uuid: entry.uuid, name: entry.name }} onClose={onClose} />;
  }
}

interface RowProps {
  entry: Entry;
  isTrash: boolean;
  items: readonly MenuItem[];
  onOpen: () => void;
  onRun: () => void;
}

function DocumentRow({ entry, isTrash, items, onOpen, onRun }: RowProps) {
  const connector = connectors.value.find((one) => one.id === entry.connector)?.displayName ?? entry.dialect ?? "";
  const about = [entry.folder === "/" ? "" : entry.folder, connector, entry.owner, entry.description];
  const mayRun = !isTrash && entry.permission !== "view";
  return (
    <>
      <div class={styles.main}>
        {isTrash ? (
          <span class={styles.title}>{entry.name}</span>
        ) : (
          <button type="button" class={styles.open} onClick={onOpen}>
            {entry.name}
          </button>
        )}
        <span class={styles.about}>{about.filter((text) => text !== "").join(" · ")}</span>
      </div>
      <time class={styles.when} dateTime={entry.modified} title={`${dateText(entry.modified)}, ${entry.modified_by}`}>
        {ago(entry.modified)}
      </time>
      {mayRun ? (
        <IconButton label={`Run ${entry.name}`} onClick={onRun}>
          <Play size={16} aria-hidden />
        </IconButton>
      ) : null}
      <Menu label={`Actions of ${entry.name}`} items={items}>
        <EllipsisVertical size={16} aria-hidden />
      </Menu>
    </>
  );
}
