import { useState } from "preact/hooks";
import { TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { deleteDocument, type Entry, moveDocument, saveDocument } from "./documents.ts";
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
    onChanged();
  };
  return (
    <FormDialog title="Rename the query" action="Rename" onSubmit={change} onClose={onClose}>
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
  const move = async () => {
    await moveDocument(entry.uuid, folder || "/");
    onChanged();
  };
  return (
    <FormDialog title={`Move “${entry.name}”`} action="Move" onSubmit={move} onClose={onClose}>
      <FolderField value={folder} onChange={setFolder} />
    </FormDialog>
  );
}

export function DeleteDialog({ entry, onClose, onChanged }: Props) {
  const remove = async () => {
    await deleteDocument(entry.uuid, true);
    onChanged();
  };
  return (
    <FormDialog title="Delete for ever" action="Delete" onSubmit={remove} onClose={onClose} isDanger>
      <p>“{entry.name}” and its versions will be deleted. They cannot be restored.</p>
    </FormDialog>
  );
}
