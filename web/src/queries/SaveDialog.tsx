import { Trash2 } from "lucide-preact";
import { useId, useState } from "preact/hooks";
import { TYPES } from "../editor/sql/parameters.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { ago } from "../ui/texts.ts";
import { useAction } from "../ui/useAction.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { type Document, foldersOf, getDocument, listDocuments, type Parameter, saveDocument } from "./documents.ts";
import styles from "./queries.module.css";

/** What is saved: a text of the editor, or a saved query with its changes. */
export interface Draft {
  /** Of a saved query: its uuid. What the draft does not have of name, folder, description and defaults is kept. */
  uuid?: string;
  /** The version from which the statement comes; 0 if it is unknown. */
  version?: number;
  name?: string;
  description?: string;
  folder?: string;
  statement: string;
  /** The id of the connector, and the database. */
  connector: string;
  database?: string;
  parameters?: readonly Parameter[];
}

interface Props {
  draft: Draft;
  onSaved: (document: Document) => void;
  onClose: () => void;
}

type ParameterType = Parameter["type"];
const WITHOUT_TYPE = { value: "", label: "As written" };

/** Save a statement under a name, in a folder, with defaults of its parameters. */
export function SaveDialog(props: Props) {
  const { uuid } = props.draft;
  const stored = useLoaded(uuid ?? "", async (signal) => (uuid === undefined ? null : await getDocument(uuid, signal)));
  if (uuid === undefined || stored.value !== null) return <SaveForm {...props} stored={stored.value} />;
  return (
    <Dialog title="Save the query" onClose={props.onClose}>
      {stored.problem ? <ErrorMessage problem={stored.problem} onRetry={stored.reload} /> : <Loading />}
    </Dialog>
  );
}

function SaveForm({ draft, stored, onSaved, onClose }: Props & { stored: Document | null }) {
  const [name, setName] = useState(draft.name ?? stored?.name ?? "");
  const [folder, setFolder] = useState(draft.folder ?? stored?.folder ?? "/");
  const [description, setDescription] = useState(draft.description ?? stored?.description ?? "");
  const [parameters, setParameters] = useState(draft.parameters ?? stored?.parameters ?? []);
  const { isBusy, problem, run } = useAction();
  const isOutdated = stored !== null && Boolean(draft.version) && draft.version !== stored.version;
  const mayChange = stored?.permission === "edit" || stored?.permission === "manage";
  const save = (asCopy: boolean) =>
    run(async () => {
      const identity = asCopy || stored === null ? {} : { uuid: stored.uuid, version: stored.version };
      const { statement, connector } = draft;
      // The folder belongs to the owner.
      const place = asCopy || stored === null || stored.permission === "manage" ? { folder } : {};
      const content = { name, ...place, description, statement, connector, database: draft.database ?? "" };
      onSaved(await saveDocument({ ...identity, ...content, parameters: [...parameters] }));
    });
  const form = useId();
  return (
    <Dialog
      title={stored ? "Save the query" : "Save as a query"}
      onClose={onClose}
      actions={
        <>
          {stored ? (
            <Button disabled={isBusy} onClick={() => save(true)}>
              Save as a copy
            </Button>
          ) : null}
          <Button
            kind="primary"
            type="submit"
            form={form}
            disabled={isBusy || name.trim() === "" || !(stored === null || mayChange)}
          >
            Save
          </Button>
        </>
      }
    >
      <form
        id={form}
        class={styles.fields}
        onSubmit={(event) => {
          event.preventDefault();
          save(false);
        }}
      >
        <TextField
          label="Name"
          value={name}
          required
          autofocus
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <FolderField value={folder} onChange={setFolder} />
        <TextField
          label="Description"
          value={description}
          onInput={(event) => setDescription(event.currentTarget.value)}
        />
        <Parameters parameters={parameters} onChange={setParameters} />
      </form>
      {isOutdated ? <Outdated stored={stored} /> : null}
      {problem ? <ErrorMessage problem={problem} /> : null}
    </Dialog>
  );
}

/** Says that the query has been saved since its text was opened. The save would replace that version. */
function Outdated({ stored }: { stored: Document }) {
  return (
    <p class={styles.warning} role="alert">
      {`${stored.modified_by} has saved another text since you opened this query (${ago(stored.modified)}).`}
      {` If you save, yours becomes the current version; the other one stays in the list of versions.`}
    </p>
  );
}

interface FolderProps {
  value: string;
  onChange: (folder: string) => void;
}

/** A folder, new or one of those that exist. */
export function FolderField({ value, onChange }: FolderProps) {
  const id = useId();
  const folders = useLoaded("folders", async (signal) =>
    foldersOf(await listDocuments({ text: "", isTrash: false }, signal, () => undefined)),
  );
  return (
    <>
      <TextField
        label="Folder"
        hint="Names separated by /. A new folder is made by saving to it."
        value={value}
        list={id}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      <datalist id={id}>
        {(folders.value ?? []).map((folder) => (
          <option key={folder} value={folder} />
        ))}
      </datalist>
    </>
  );
}

interface ParametersProps {
  parameters: readonly Parameter[];
  onChange: (parameters: readonly Parameter[]) => void;
}

function Parameters({ parameters, onChange }: ParametersProps) {
  if (parameters.length === 0) return null;
  const change = (at: number, changes: Partial<Parameter>) =>
    onChange(parameters.map((one, index) => (index === at ? { ...one, ...changes } : one)));
  return (
    <fieldset class={styles.parameters}>
      <legend>Parameters</legend>
      {parameters.map((parameter, index) => (
        <div key={parameter.name} class={styles.parameter}>
          <code>:{parameter.name}</code>
          <SelectField
            label="Type"
            value={parameter.type ?? ""}
            options={[WITHOUT_TYPE, ...TYPES.map((type) => ({ value: type, label: type }))]}
            onChange={(value) => change(index, { type: typeOf(value) })}
          />
          <TextField
            label="Default"
            value={textOf(parameter.default)}
            onInput={(event) => change(index, { default: event.currentTarget.value || null })}
          />
          <IconButton
            label={`Remove the default of ${parameter.name}`}
            onClick={() => onChange(parameters.filter((one) => one !== parameter))}
          >
            <Trash2 size={16} aria-hidden />
          </IconButton>
        </div>
      ))}
    </fieldset>
  );
}

function typeOf(value: string): ParameterType {
  return TYPES.find((type) => type === value) ?? null;
}

function textOf(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
