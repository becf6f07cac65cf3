import { useState } from "preact/hooks";
import { api, data } from "../api/client.ts";
import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { CheckField, TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { bytesText, countText, numberText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import * as changes from "./changes.ts";
import type { ChangeProps } from "./dialogs.tsx";
import type { Entry } from "./listing.ts";
import styles from "./preview.module.css";

const WHO = ["Owner", "Group", "Others"] as const;
const WHAT = ["Read", "Write", "Execute"] as const;
const STICKY = 0o1000;

function bitOf(who: number, what: number): number {
  return 1 << (8 - 3 * who - what);
}

interface AttributeProps extends ChangeProps {
  entries: readonly Entry[];
  /** Whether the store changes whole trees. */
  isRecursive: boolean;
}

export function PermissionsDialog({ entries, isRecursive, onClose, apply }: AttributeProps) {
  const [mode, setMode] = useState((entries[0]?.mode ?? 0) & 0o1777);
  const [recursive, setRecursive] = useState(false);
  const check = (bit: number, label: string) => (
    <CheckField label={label} checked={(mode & bit) !== 0} onChange={() => setMode(mode ^ bit)} />
  );
  return (
    <FormDialog
      title={`Permissions of ${changes.subjectOf(entries)}`}
      action="Change"
      onSubmit={() => apply(changes.changeMode(entries, mode.toString(8), recursive))}
      onClose={onClose}
    >
      <div class={styles.modes}>
        {WHO.map((who, row) => (
          <fieldset key={who}>
            <legend>{who}</legend>
            {WHAT.map((what, column) => check(bitOf(row, column), what))}
          </fieldset>
        ))}
      </div>
      {check(STICKY, "Only owners can delete entries (sticky)")}
      {isRecursive ? <Recursive entries={entries} checked={recursive} onChange={setRecursive} /> : null}
    </FormDialog>
  );
}

export function OwnerDialog({ entries, isRecursive, onClose, apply }: AttributeProps) {
  const [user, setUser] = useState(entries[0]?.user ?? "");
  const [group, setGroup] = useState(entries[0]?.group ?? "");
  const [recursive, setRecursive] = useState(false);
  return (
    <FormDialog
      title={`Owner of ${changes.subjectOf(entries)}`}
      action="Change"
      onSubmit={() => apply(changes.changeOwner(entries, user.trim(), group.trim(), recursive))}
      onClose={onClose}
    >
      <TextField label="User" value={user} autofocus onInput={(event) => setUser(event.currentTarget.value)} />
      <TextField label="Group" value={group} onInput={(event) => setGroup(event.currentTarget.value)} />
      {isRecursive ? <Recursive entries={entries} checked={recursive} onChange={setRecursive} /> : null}
    </FormDialog>
  );
}

export function ReplicationDialog({ entry, onClose, apply }: ChangeProps & { entry: Entry }) {
  const [factor, setFactor] = useState(String(entry.replication || 3));
  const number = Number(factor);
  const isValid = Number.isInteger(number) && number >= 1 && number <= 512;
  return (
    <FormDialog
      title={`Replication of “${entry.name}”`}
      action="Change"
      isDisabled={!isValid}
      onSubmit={() => apply(changes.changeReplication(entry, number))}
      onClose={onClose}
    >
      <TextField
        label="Copies of each block"
        type="number"
        value={factor}
        {...(isValid ? {} : { problem: "A number from 1 to 512." })}
        onInput={(event) => setFactor(event.currentTarget.value)}
      />
    </FormDialog>
  );
}

/** The number of entries below a directory, and their size. */
export function SizeDialog({ entry, onClose }: { entry: Entry; onClose: () => void }) {
  const { value, problem, reload } = useLoaded(entry.path, (signal) =>
    data(api.GET("/api/v1/storage/content_summary", { params: { query: { path: entry.path } }, signal })),
  );
  return (
    <Dialog title={`Size of “${entry.name}”`} onClose={onClose} actions={<Button onClick={onClose}>Close</Button>}>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {!value && !problem ? <Loading label="Counting" /> : null}
      {value ? (
        <dl class={styles.facts}>
          <dt>Content</dt>
          <dd>{bytesText(value.length)}</dd>
          <dt>Files</dt>
          <dd>{countText(value.fileCount, "file")}</dd>
          <dt>Directories</dt>
          <dd>{numberText(value.directoryCount)}</dd>
          <dt>Disk space, including replicas</dt>
          <dd>{bytesText(value.spaceConsumed)}</dd>
        </dl>
      ) : null}
    </Dialog>
  );
}

interface RecursiveProps {
  entries: readonly Entry[];
  checked: boolean;
  onChange: (recursive: boolean) => void;
}

function Recursive({ entries, checked, onChange }: RecursiveProps) {
  if (entries.every((entry) => entry.type !== "dir")) return null;
  return (
    <CheckField
      label="Apply to all entries below"
      checked={checked}
      onChange={(event) => onChange(event.currentTarget.checked)}
    />
  );
}
