import { ArrowUp, FolderPlus } from "lucide-preact";
import { useEffect, useState } from "preact/hooks";
import { api, data } from "../api/client.ts";
import { IconButton } from "../ui/Button.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import { Crumbs } from "./Crumbs.tsx";
import { type Entry, useListing } from "./listing.ts";
import { NameForm } from "./NameForm.tsx";
import { PickerList } from "./PickerList.tsx";
import { isRoot, join, parentOf, rootOf } from "./paths.ts";
import styles from "./picker.module.css";
import { type Store, storeOf, TITLES, useStores } from "./stores.ts";

interface Props {
  /** What can be chosen: the directory that is open, or a file. */
  mode: "directory" | "file";
  /** The chosen path; empty for none. A directory picker without a value chooses the home of the first store. */
  value: string;
  onChange: (path: string) => void;
  label?: string;
}

/** Choose a directory or a file of a store, by typing its path or by walking to it. */
export function PathPicker(props: Props) {
  const { stores, problem, reload } = useStores();
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (stores === null) return <Loading label="Loading stores" />;
  if (stores.length === 0) return <ErrorMessage problem={new Error("You have no access to a file store.")} />;
  return <Picker {...props} stores={stores} />;
}

function Picker({ mode, value, onChange, label, stores }: Props & { stores: readonly Store[] }) {
  const home = stores[0]?.user_home_directory ?? "/";
  const [directory, setDirectory] = useState(() => openedBy(mode, value, home));
  const [filter, setFilter] = useState("");
  const open = (path: string) => {
    setFilter("");
    setDirectory(path);
    if (mode === "directory") onChange(path);
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: only the first value is completed
  useEffect(() => {
    if (mode === "directory" && value === "") onChange(directory);
  }, []);
  return (
    <div class={styles.picker}>
      <TextField
        label={label ?? (mode === "directory" ? "Directory" : "File")}
        value={value}
        onInput={(event) => onChange(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || value === "") return;
          event.preventDefault();
          setDirectory(openedBy(mode, value, home));
        }}
      />
      {stores.length > 1 ? (
        <SelectField
          label="Store"
          value={rootOf(directory)}
          options={stores.map((store) => ({
            value: rootOf(store.user_home_directory),
            label: TITLES[store.file_system],
          }))}
          onChange={(root) => open(storeOf(root, stores)?.user_home_directory ?? root)}
        />
      ) : null}
      <Browser {...{ mode, value, directory, filter, setFilter, open, onChange }} />
    </div>
  );
}

interface BrowserProps {
  mode: "directory" | "file";
  value: string;
  directory: string;
  filter: string;
  setFilter: (filter: string) => void;
  open: (path: string) => void;
  onChange: (path: string) => void;
}

/** The entries of the open directory, with what leads out of it. */
function Browser({ mode, value, directory, filter, setFilter, open, onChange }: BrowserProps) {
  const [isNaming, setNaming] = useState(false);
  // Directories come first in the order of types.
  const listing = useListing({ path: directory, sortby: "type", descending: false, filter: useDebounced(filter) });
  const create = async (name: string) => {
    await data(api.POST("/api/v1/storage/create/directory", { body: { path: directory, name } }));
    setNaming(false);
    open(join(directory, name));
  };
  const choose = (entry: Entry) => {
    if (entry.type === "dir") open(entry.path);
    else if (mode === "file") onChange(entry.path);
  };
  return (
    <>
      <div class={styles.pickerBar}>
        <IconButton label="Open the parent" disabled={isRoot(directory)} onClick={() => open(parentOf(directory))}>
          <ArrowUp size={18} aria-hidden />
        </IconButton>
        <Crumbs path={directory} onOpen={open} />
        <IconButton label="New directory" onClick={() => setNaming(!isNaming)} aria-expanded={isNaming}>
          <FolderPlus size={18} aria-hidden />
        </IconButton>
      </div>
      {isNaming ? (
        <NameForm
          label="Name of the new directory"
          action="Create"
          onName={(name) => create(name).catch(notifyProblem)}
        />
      ) : null}
      <TextField
        label="Filter by name"
        type="search"
        value={filter}
        onInput={(event) => setFilter(event.currentTarget.value)}
        // Enter would submit the form around the picker.
        onKeyDown={(event) => event.key === "Enter" && event.preventDefault()}
      />
      <PickerList
        key={directory}
        {...{ listing, mode, value }}
        onChoose={choose}
        onParent={() => (isRoot(directory) ? undefined : open(parentOf(directory)))}
      />
    </>
  );
}

/** Return the directory to list for a chosen path. */
function openedBy(mode: Props["mode"], value: string, home: string): string {
  if (value === "") return home;
  return mode === "directory" ? value : parentOf(value);
}
