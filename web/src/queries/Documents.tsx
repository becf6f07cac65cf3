import { Folder, FolderOpen } from "lucide-preact";
import { useState } from "preact/hooks";
import { TextField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { DocumentList } from "./DocumentList.tsx";
import { type Entry, foldersOf, isWithin, listDocuments } from "./documents.ts";
import styles from "./queries.module.css";

/** Saved queries by folder, with search over names, descriptions and statements. */
export function Documents({ isTrash }: { isTrash: boolean }) {
  const [text, setText] = useState("");
  const [folder, setFolder] = useState("/");
  const [part, setPart] = useState<readonly Entry[]>([]);
  const searched = useDebounced(text.trim());
  const { value, problem, isLoading, reload } = useLoaded(searched, (signal) =>
    listDocuments({ text: searched, isTrash }, signal, setPart),
  );
  const entries = value ?? part;
  const folders = foldersOf(entries);
  const open = folders.includes(folder) ? folder : "/";
  const shown = entries.filter((entry) => isWithin(entry.folder, open));
  return (
    <div class={styles.documents}>
      {folders.length > 1 ? <Folders folders={folders} open={open} onOpen={setFolder} /> : null}
      <div class={styles.list}>
        <TextField
          label="Search"
          type="search"
          placeholder="Name, description or text"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
        {shown.length > 0 ? <DocumentList entries={shown} isTrash={isTrash} onChanged={reload} /> : null}
        {isLoading && shown.length === 0 ? <Loading label="Loading queries" /> : null}
        {!isLoading && !problem && shown.length === 0 ? <Nothing isSearch={searched !== ""} isTrash={isTrash} /> : null}
      </div>
    </div>
  );
}

function Nothing({ isSearch, isTrash }: { isSearch: boolean; isTrash: boolean }) {
  if (isSearch) return <EmptyState title="No query contains this text." />;
  if (isTrash) return <EmptyState title="The trash is empty." />;
  return (
    <EmptyState title="There are no saved queries yet.">
      Write a statement in the editor and save it: you can then find, change, run and share it.
    </EmptyState>
  );
}

interface FoldersProps {
  folders: readonly string[];
  open: string;
  onOpen: (folder: string) => void;
}

function Folders({ folders, open, onOpen }: FoldersProps) {
  return (
    <nav class={styles.folders} aria-label="Folders">
      {folders.map((folder) => {
        const Icon = folder === open ? FolderOpen : Folder;
        const depth = folder === "/" ? 0 : folder.split("/").length - 1;
        return (
          <button
            key={folder}
            type="button"
            class={styles.folder}
            data-depth={Math.min(depth, 5)}
            aria-current={folder === open}
            title={folder}
            onClick={() => onOpen(folder)}
          >
            <Icon size={16} aria-hidden />
            <span>{folder === "/" ? "All" : folder.slice(folder.lastIndexOf("/") + 1)}</span>
          </button>
        );
      })}
    </nav>
  );
}
