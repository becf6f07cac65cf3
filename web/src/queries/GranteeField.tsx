import { useId } from "preact/hooks";
import { isAdmin } from "../app/config.ts";
import { SelectField, TextField } from "../ui/Field.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import type { Grantee } from "./documents.ts";
import { suggestions } from "./people.ts";
import styles from "./queries.module.css";

interface Props {
  value: Grantee;
  onChange: (value: Grantee) => void;
}

/** A user or a group by name, with suggestions. */
export function GranteeField({ value, onChange }: Props) {
  const id = useId();
  const text = useDebounced(value.name);
  const found = useLoaded(text, (signal) => suggestions(text, signal));
  const names = (found.value ?? []).filter((one) => one.kind === value.kind);
  return (
    <div class={styles.grantee}>
      <SelectField
        label="With"
        value={value.kind}
        options={[
          { value: "user", label: "User" },
          { value: "group", label: "Group" },
        ]}
        onChange={(kind) => onChange({ ...value, kind: kind === "group" ? "group" : "user" })}
      />
      <TextField
        label={value.kind === "group" ? "Group name" : "User name"}
        value={value.name}
        list={id}
        autocomplete="off"
        {...(isAdmin.value ? {} : { hint: "The exact name" })}
        onInput={(event) => onChange({ ...value, name: event.currentTarget.value })}
      />
      <datalist id={id}>
        {names.map(({ name }) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </div>
  );
}
