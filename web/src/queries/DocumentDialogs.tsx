import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { TextField } from "../ui/Field.tsx";
import { ErrorMessage } from "../ui/States.tsx";
import { useAction } from "../ui/useAction.ts";
import { deleteDocument, type Entry, moveDocument, saveDocument } from "./documents.ts";
import styles from "./queries.module.css";
import { FolderField } from "./SaveDialog.tsx";

interface Props {
  entry: Entry;
  onClose: () => void;
  onChanged: () => void;
}

export function RenameDialog({ entry, onClose, onChanged }: Props) {
  const [name, setName] = useState(entry.name);
  const [description, setDescription] = useState(entry.description);
  const change = async () => {
    await saveDocument({ uuid: entry.uuid, version: entry.version, name, description });
  };
  return (
    <FormDialog title="Rename the query" action="Rename" onDo={change} onClose={onClose} onChanged={onChanged}>
      <TextField label="Name" value={name} required autofocus onInput={(event) => setName(event.currentTarget.value)} />
      <TextField
        label="Description"
        value={description}
        onInput={(event) => setDescription(event.currentTarget.value)}
      />
    </FormDialog>
  );
}

export function MoveDialog({ entry, onClose, onChanged }: Props) {
  const [folder, setFolder] = useState(entry.folder);
  const move = () => moveDocument(entry.uuid, folder || "/");
  return (
    <FormDialog title={`Move “${entry.name}”`} action="Move" onDo={move} onClose={onClose} onChanged={onChanged}>
      <FolderField value={folder} onChange={setFolder} />
    </FormDialog>
  );
}

export function DeleteDialog({ entry, onClose, onChanged }: Props) {
  const remove = () => deleteDocument(entry.uuid, true);
  return (
    <FormDialog title="Delete for ever" action="Delete" onDo={remove} onClose={onClose} onChanged={onChanged} isDanger>
      <p>“{entry.name}” and its versions will be deleted. They cannot be restored.</p>
    </FormDialog>
  );
}

interface FormProps {
  title: string;
  action: string;
  onDo: () => Promise<void>;
  onClose: () => void;
  onChanged: () => void;
  isDanger?: boolean;
  children: ComponentChildren;
}

function FormDialog({ title, action, onDo, onClose, onChanged, isDanger = false, children }: FormProps) {
  const id = useId();
  const { isBusy, problem, run } = useAction();
  const submit = (event: Event) => {
    event.preventDefault();
    run(async () => {
      await onDo();
      onChanged();
      onClose();
    });
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind={isDanger ? "danger" : "primary"} type="submit" form={id} disabled={isBusy}>
            {action}
          </Button>
        </>
      }
    >
      <form id={id} class={styles.fields} onSubmit={submit}>
        {children}
      </form>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </Dialog>
  );
}
