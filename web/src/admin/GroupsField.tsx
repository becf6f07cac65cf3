import { X } from "lucide-preact";
import { useId, useState } from "preact/hooks";
import { Button, IconButton } from "../ui/Button.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./connectors.module.css";
import { groupNames } from "./connectors.ts";
import { Refusal } from "./Refusal.tsx";

interface Props {
  /** Null: the groups that the server's settings name. */
  groups: readonly string[] | null;
  /** Whether the groups of the server's settings can be chosen. */
  isNew: boolean;
  problem: string | undefined;
  onChange: (groups: readonly string[] | null) => void;
}

/** The groups whose members may use the connector, besides administrators. */
export function GroupsField({ groups, isNew, problem, onChange }: Props) {
  return (
    <>
      {isNew ? (
        <SelectField
          label="Who may use it"
          value={groups === null ? "default" : "groups"}
          options={[
            { value: "default", label: "The default of new connectors" },
            { value: "groups", label: "Administrators and members of these groups" },
          ]}
          onChange={(value) => onChange(value === "groups" ? [] : null)}
        />
      ) : null}
      {groups === null ? null : <GroupList groups={groups} onChange={onChange} />}
      {problem ? <Refusal text={problem} /> : null}
    </>
  );
}

function GroupList({ groups, onChange }: { groups: readonly string[]; onChange: Props["onChange"] }) {
  const [name, setName] = useState("");
  const id = useId();
  const text = useDebounced(name.trim());
  const found = useLoaded(text, (signal) => groupNames(text, signal));
  const add = () => {
    const added = name.trim();
    if (added !== "" && !groups.includes(added)) onChange([...groups, added]);
    setName("");
  };
  return (
    <div class={styles.groups}>
      <ul class={styles.chips} aria-label="Groups that may use it">
        {groups.map((group) => (
          <li key={group} class={styles.chip}>
            {group}
            <IconButton
              label={`Remove the group ${group}`}
              onClick={() => onChange(groups.filter((one) => one !== group))}
            >
              <X size={14} aria-hidden />
            </IconButton>
          </li>
        ))}
      </ul>
      {groups.length === 0 ? <div class={styles.soft}>Only administrators may use it.</div> : null}
      <div class={styles.secret}>
        <TextField
          label="Group"
          value={name}
          list={id}
          autocomplete="off"
          onInput={(event) => setName(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault();
            add();
          }}
        />
        <Button disabled={name.trim() === ""} onClick={add}>
          Add the group
        </Button>
      </div>
      <datalist id={id}>
        {(found.value ?? []).map((group) => (
          <option key={group} value={group} />
        ))}
      </datalist>
    </div>
  );
}
