import { useState } from "preact/hooks";
import { CheckField, TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { OwnerDialog, PermissionsDialog, ReplicationDialog, SizeDialog } from "./attributes.tsx";
import * as changes from "./changes.ts";
import type { Entry } from "./listing.ts";
import { PathPicker } from "./PathPicker.tsx";
import { parentOf } from "./paths.ts";

/** What the user wants to do, with the entries that were selected then. */
export type Intent =
  | { kind: "create" }
  | { kind: "rename" | "replication" | "size"; entry: Entry }
  | { kind: "move" | "copy" | "delete" | "permissions" | "owner"; entries: readonly Entry[] }
  | { kind: "purge" };

interface Props {
  intent: Intent;
  directory: string;
  /** Whether deleted entries go to a trash. */
  hasTrash: boolean;
  /** Whether permissions and owners of whole trees can be changed. */
  isRecursive: boolean;
  onClose: () => void;
  /** Called after a change, with whether all of it succeeded. */
  onChanged: (isDone: boolean) => void;
}

/** The dialog of an intent. */
export function IntentDialog({ intent, directory, hasTrash, isRecursive, onClose, onChanged }: Props) {
  const props: ChangeProps = { onClose, apply: (change) => void change.then(onChanged) };
  switch (intent.kind) {
    case "create":
      return <CreateDialog directory={directory} onClose={onClose} onChanged={onChanged} />;
    case "rename":
      return <RenameDialog {...props} entry={intent.entry} />;
    case "move":
    case "copy":
      return <TransferDialog {...props} kind={intent.kind} entries={intent.entries} />;
    case "delete":
      return <DeleteDialog {...props} entries={intent.entries} hasTrash={hasTrash} />;
    case "purge":
      return <PurgeDialog {...props} directory={directory} />;
    case "permissions":
      return <PermissionsDialog {...props} entries={intent.entries} isRecursive={isRecursive} />;
    case "owner":
      return <OwnerDialog {...props} entries={intent.entries} isRecursive={isRecursive} />;
    case "replication":
      return <ReplicationDialog {...props} entry={intent.entry} />;
    case "size":
      return <SizeDialog entry={intent.entry} onClose={onClose} />;
  }
}

export interface ChangeProps {
  onClose: () => void;
  /** Follow a change; its progress is in the list of transfers, and the dialog closes at once. */
  apply: (change: Promise<boolean>) => void;
}

function CreateDialog({ directory, onClose, onChanged }: Pick<Props, "directory" | "onClose" | "onChanged">) {
  const [name, setName] = useState("");
  const create = async () => {
    await changes.createDirectory(directory, name.trim());
    onChanged(true);
  };
  return (
    <FormDialog
      title="New directory"
      action="Create"
      isDisabled={name.trim() === ""}
      onSubmit={create}
      onClose={onClose}
    >
      <TextField label="Name" value={name} autofocus onInput={(event) => setName(event.currentTarget.value)} />
    </FormDialog>
  );
}

function RenameDialog({ entry, onClose, apply }: ChangeProps & { entry: Entry }) {
  const [name, setName] = useState(entry.name);
  return (
    <FormDialog
      title={`Rename “${entry.name}”`}
      action="Rename"
      isDisabled={name.trim() === ""}
      onSubmit={() => apply(changes.rename(entry, name.trim()))}
      onClose={onClose}
    >
      <TextField label="New name" value={name} autofocus onInput={(event) => setName(event.currentTarget.value)} />
    </FormDialog>
  );
}

interface TransferProps extends ChangeProps {
  kind: "move" | "copy";
  entries: readonly Entry[];
}

function TransferDialog({ kind, entries, onClose, apply }: TransferProps) {
  const [directory, setDirectory] = useState(parentOf(entries[0]?.path ?? "/"));
  const verb = kind === "move" ? "Move" : "Copy";
  return (
    <FormDialog
      title={`${verb} ${changes.subjectOf(entries)}`}
      action={`${verb} here`}
      isDisabled={directory === ""}
      onSubmit={() => apply(changes[kind](entries, directory))}
      onClose={onClose}
    >
      <PathPicker mode="directory" label="To the directory" value={directory} onChange={setDirectory} />
    </FormDialog>
  );
}

interface DeleteProps extends ChangeProps {
  entries: readonly Entry[];
  hasTrash: boolean;
}

function DeleteDialog({ entries, hasTrash, onClose, apply }: DeleteProps) {
  const [isPermanent, setPermanent] = useState(!hasTrash);
  return (
    <FormDialog
      title={`Delete ${changes.subjectOf(entries)}`}
      action={isPermanent ? "Delete permanently" : "Move to the trash"}
      isDanger
      onSubmit={() => apply(changes.discard(entries, isPermanent))}
      onClose={onClose}
    >
      <p>
        {isPermanent
          ? "What is deleted permanently cannot be restored."
          : "What is deleted is moved to the trash, and can be restored from there."}
      </p>
      {hasTrash ? (
        <CheckField
          label="Delete permanently"
          checked={isPermanent}
          onChange={(event) => setPermanent(event.currentTarget.checked)}
        />
      ) : null}
    </FormDialog>
  );
}

function PurgeDialog({ directory, onClose, apply }: ChangeProps & { directory: string }) {
  return (
    <FormDialog
      title="Empty the trash"
      action="Empty the trash"
      isDanger
      onSubmit={() => apply(changes.emptyTrash(directory))}
      onClose={onClose}
    >
      <p>All entries of your trash in this store are deleted permanently.</p>
    </FormDialog>
  );
}
