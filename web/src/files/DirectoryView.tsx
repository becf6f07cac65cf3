import { FolderPlus, Upload as UploadIcon } from "lucide-preact";
import type { TargetedDragEvent } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { ApiError } from "../api/errors.ts";
import { Button } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { countText } from "../ui/texts.ts";
import { useDebounced } from "../ui/useDebounced.ts";
import { Crumbs } from "./Crumbs.tsx";
import { type Intent, IntentDialog } from "./dialogs.tsx";
import { droppedFiles } from "./dropped.ts";
import { FileTable } from "./FileTable.tsx";
import styles from "./files.module.css";
import { type Listing, type SortKey, useListing } from "./listing.ts";
import { addressOf, isInTrash, isRoot, parentOf } from "./paths.ts";
import { SelectionBar } from "./SelectionBar.tsx";
import { Selection } from "./selection.ts";
import { type Store, supports } from "./stores.ts";
import { completed, upload } from "./uploads.ts";

interface Props {
  path: string;
  /** As in the address: the key to sort by, after `-` in descending order. */
  sort: string;
  store: Store | undefined;
  /** Shown in place of the list if the path is a file. */
  ofFile: preact.ComponentChildren;
}

const KEYS: readonly SortKey[] = ["name", "type", "mtime", "size", "user", "group"];

export function DirectoryView({ path, sort, store, ofFile }: Props) {
  const { route } = useLocation();
  const [filter, setFilter] = useState("");
  const applied = useDebounced(filter);
  const [round, setRound] = useState(0);
  const reload = () => setRound((before) => before + 1);
  const [intent, setIntent] = useState<Intent | null>(null);
  const descending = sort.startsWith("-");
  const sortby = KEYS.find((key) => key === sort.replace(/^-/, "")) ?? "name";
  const listing = useListing({ path, sortby, descending, filter: applied }, round + completed.value);
  const selection = useMemo(() => new Selection(listing), [listing]);
  const problem = listing.problem.value;
  if (isNotADirectory(problem)) return <>{ofFile}</>;

  const onSort = (key: SortKey) =>
    route(addressOf(path, { sort: key === sortby && !descending ? `-${key}` : key }), true);
  const inTrash = isInTrash(path);
  const selected = selection.entries.value;
  const hasTrash = (store?.has_trash ?? false) && !inTrash;
  const first = selected[0];
  return (
    <DropZone path={path} isEnabled={!inTrash}>
      <div class={styles.bar}>
        <Crumbs path={path} />
        {inTrash ? null : <NewButtons path={path} onCreate={() => setIntent({ kind: "create" })} />}
        {inTrash ? (
          <Button kind="danger" onClick={() => setIntent({ kind: "purge" })}>
            Empty trash
          </Button>
        ) : null}
      </div>
      <div class={styles.bar}>
        <input
          class={styles.filter}
          type="search"
          aria-label="Filter by name"
          placeholder="Filter by name"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
        <SelectionBar {...{ selection, store, inTrash }} onIntent={setIntent} onChanged={reload} />
      </div>
      <ListState listing={listing} isFiltered={applied !== ""} />
      {listing.total.value === 0 || listing.problem.value ? null : (
        <FileTable
          {...{ listing, selection, onSort }}
          onOpen={(entry) => route(addressOf(entry.path))}
          onParent={() => (isRoot(path) ? undefined : route(addressOf(parentOf(path))))}
          onRename={() => first && !inTrash && setIntent({ kind: "rename", entry: first })}
          onDelete={() => first && setIntent({ kind: "delete", entries: selected })}
        />
      )}
      {intent ? (
        <IntentDialog
          {...{ intent, hasTrash }}
          isRecursive={supports(store, "recursive")}
          directory={path}
          onClose={() => setIntent(null)}
          onChanged={reload}
        />
      ) : null}
    </DropZone>
  );
}

/** The number of entries, or why there are none. */
function ListState({ listing, isFiltered }: { listing: Listing; isFiltered: boolean }) {
  const total = listing.total.value;
  const problem = listing.problem.value;
  if (problem) return <ErrorMessage problem={problem} onRetry={() => listing.retry()} />;
  if (total === null) return <Loading />;
  if (total === 0 && isFiltered) return <EmptyState title="No name contains this text." />;
  if (total === 0) return <EmptyState title="This directory is empty.">Drop files here to upload them.</EmptyState>;
  const count = countText(total, "entry", "entries");
  return (
    <div class={styles.count} role="status">
      {listing.isTotalExact.value ? count : `More than ${count}`}
    </div>
  );
}

function NewButtons({ path, onCreate }: { path: string; onCreate: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  const choose = () => {
    const chosen = input.current;
    if (!chosen?.files) return;
    upload([...chosen.files], path);
    chosen.value = "";
  };
  return (
    <>
      <Button onClick={onCreate}>
        <FolderPlus size={16} aria-hidden />
        New directory
      </Button>
      <Button kind="primary" onClick={() => input.current?.click()}>
        <UploadIcon size={16} aria-hidden />
        Upload
      </Button>
      <input ref={input} type="file" multiple hidden aria-label="Files to upload" onChange={choose} />
    </>
  );
}

interface DropZoneProps {
  path: string;
  isEnabled: boolean;
  children: preact.ComponentChildren;
}

function DropZone({ path, isEnabled, children }: DropZoneProps) {
  const [isOver, setOver] = useState(false);
  const over = (event: TargetedDragEvent<HTMLElement>) => {
    if (!isEnabled || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    setOver(true);
  };
  const leave = ({ currentTarget, relatedTarget }: TargetedDragEvent<HTMLElement>) => {
    if (!(relatedTarget instanceof Node && currentTarget.contains(relatedTarget))) setOver(false);
  };
  const drop = (event: TargetedDragEvent<HTMLElement>) => {
    if (!isEnabled || !event.dataTransfer) return;
    event.preventDefault();
    setOver(false);
    droppedFiles(event.dataTransfer, path)
      .then((groups) => {
        for (const { directory, files } of groups) upload(files, directory);
      })
      .catch(notifyProblem);
  };
  return (
    <section
      class={isOver ? `${styles.directory} ${styles.over}` : styles.directory}
      aria-label="Directory"
      onDragOver={over}
      onDragLeave={leave}
      onDrop={drop}
    >
      {children}
    </section>
  );
}

function isNotADirectory(problem: unknown): boolean {
  return problem instanceof ApiError && problem.code === "not_a_directory";
}
