import { useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { CheckField, TextField } from "../ui/Field.tsx";
import { ErrorMessage } from "../ui/States.tsx";
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
  /** Called after a change, with its outcome. */
  onChanged: () => void;
}

/** The dialog of an intent. */
export function IntentDialog({ intent, directory, hasTrash, isRecursive, onClose, onChanged }: Props) {
  const apply = (change: Promise<boolean>) => {
    onClose();
    void change.then(onChanged);
  };
  switch (intent.kind) {
    case "create":
      return <CreateDialog directory={directory} onClose={onClose} onChanged={onChanged} />;
    case "rename":
      return <RenameDialog entry={intent.entry} onClose={onClose} apply={apply} />;
    case "move":
    case "copy":
      return <TransferDialog kind={intent.kind} entries={intent.entries} onClose={onClose} apply={apply} />;
    case "delete":
      return <DeleteDialog entries={intent.entries} hasTrash={hasTrash} onClose={onClose} apply={apply} />;
    case "purge":
      return <PurgeDialog directory={directory} onClose={onClose} apply={apply} />;
    case "permissions":
      return <PermissionsDialog {...{ isRecursive, onClose, apply }} entries={intent.entries} />;
    case "owner":
      return <OwnerDialog {...{ isRecursive, onClose, apply }} entries={intent.entries} />;
    case "replication":
      return <ReplicationDialog entry={intent.entry} onClose={onClose} apply={apply} />;
    case "size":
      return <SizeDialog entry={intent.entry} onClose={onClose} />;
  }
}

export interface ChangeProps {
  onClose: () => void;
  apply: (change: Promise<boolean>) => void;
}

function CreateDialog({ directory, onClose, onChanged }: Pick<Props, "directory" | "onClose" | "onChanged">) {
  const [name, setName] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const create = async () => {
    try {
      await changes.createDirectory(directory, name.trim());
      onClose();
      onChanged();
    } catch (caught) {
      setProblem(caught);
    }
  };
  return (
    <NameDialog title="New directory" label="Name" action="Create" {...{ name, setName, onClose }} onName={create}>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </NameDialog>
  );
}

function RenameDialog({ entry, onClose, apply }: ChangeProps & { entry: Entry }) {
  const [name, setName] = useState(entry.name);
  return (
    <NameDialog
      title={`Rename “${entry.name}”`}
      label="New name"
      action="Rename"
      {...{ name, setName, onClose }}
      onName={() => apply(changes.rename(entry, name.trim()))}
    />
  );
}

interface NameDialogProps {
  title: string;
  label: string;
  action: string;
  name: string;
  setName: (name: string) => void;
  onName: () => void;
  onClose: () => void;
  children?: preact.ComponentChildren;
}

function NameDialog({ title, label, action, name, setName, onName, onClose, children }: NameDialogProps) {
  const isReady = name.trim() !== "";
  const submit = (event: Event) => {
    event.preventDefault();
    if (isReady) onName();
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!isReady} onClick={onName}>
            {action}
          </Button>
        </>
      }
    >
      <form onSubmit={submit}>
        <TextField label={label} value={name} autofocus onInput={(event) => setName(event.currentTarget.value)} />
      </form>
      {children}
    </Dialog>
  );
}

function TransferDialog({
  kind,
  entries,
  onClose,
  apply,
}: ChangeProps & { kind: "move" | "copy"; entries: readonly Entry[] }) {
  const [directory, setDirectory] = useState(parentOf(entries[0]?.path ?? "/"));
  const verb = kind === "move" ? "Move" : "Copy";
  const start = () => apply(kind === "move" ? changes.move(entries, directory) : changes.copy(entries, directory));
  return (
    <Dialog
      title={`${verb} ${changes.subjectOf(entries)}`}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={directory === ""} onClick={start}>
            {verb} here
          </Button>
        </>
      }
    >
      <PathPicker mode="directory" label="To the directory" value={directory} onChange={setDirectory} />
    </Dialog>
  );
}

function DeleteDialog({
  entries,
  hasTrash,
  onClose,
  apply,
}: ChangeProps & { entries: readonly Entry[]; hasTrash: boolean }) {
  const [isPermanent, setPermanent] = useState(!hasTrash);
  const action = isPermanent ? "Delete permanently" : "Move to the trash";
  return (
    <Dialog
      title={`Delete ${changes.subjectOf(entries)}`}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="danger" autofocus onClick={() => apply(changes.discard(entries, isPermanent))}>
            {action}
          </Button>
        </>
      }
    >
      <p>{isPermanent ? "What is deleted permanently cannot be restored." : "It can be restored from the trash."}</p>
      {hasTrash ? (
        <CheckField
          label="Delete permanently"
          checked={isPermanent}
          onChange={(event) => setPermanent(event.currentTarget.checked)}
        />
      ) : null}
    </Dialog>
  );
}

function PurgeDialog({ directory, onClose, apply }: ChangeProps & { directory: string }) {
  return (
    <Dialog
      title="Empty the trash"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="danger" onClick={() => apply(changes.emptyTrash(directory))}>
            Empty the trash
          </Button>
        </>
      }
    >
      <p>All entries of your trash of this store are deleted permanently.</p>
    </Dialog>
  );
}
