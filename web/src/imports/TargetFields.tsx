import { databases } from "../catalog/store.ts";
import { SelectField, TextField } from "../ui/Field.tsx";
import { ErrorMessage } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./DraftForm.module.css";
import { targets } from "./state.ts";
import { BAD_ROWS, IF_EXISTS, type Target } from "./target.ts";

interface Props {
  target: Target;
  /** What is wrong with the name of the table. */
  problem: string | undefined;
  onChange: (changes: Partial<Target>) => void;
}

/** Which table the rows go to. */
export function TargetFields({ target, problem, onChange }: Props) {
  const possible = targets();
  return (
    <fieldset class={styles.group}>
      <legend>Table</legend>
      <SelectField
        label="Data source"
        value={target.connector}
        options={possible.map(({ id, displayName }) => ({ value: id, label: displayName }))}
        onChange={(connector) => onChange({ connector, database: "" })}
      />
      <DatabaseField key={target.connector} target={target} onChange={onChange} />
      <TextField
        label="Table name"
        value={target.table}
        required
        problem={problem}
        onInput={(event) => onChange({ table: event.currentTarget.value })}
      />
      <div role="radiogroup" aria-label="If the table exists" class={styles.choices}>
        {IF_EXISTS.map(({ value, label, hint }) => (
          <label key={value} class={styles.choice}>
            <input
              type="radio"
              name="if-exists"
              checked={target.ifExists === value}
              onChange={() => onChange({ ifExists: value })}
            />
            <span>
              {label}
              <span class={styles.choiceHint}>{hint}</span>
            </span>
          </label>
        ))}
      </div>
      <SelectField
        label="Rows that do not fit the types"
        value={target.badRows}
        options={BAD_ROWS}
        onChange={(value) => onChange({ badRows: BAD_ROWS.find((one) => one.value === value)?.value ?? "few" })}
      />
    </fieldset>
  );
}

function DatabaseField({ target, onChange }: Pick<Props, "target" | "onChange">) {
  const { value, problem, reload } = useLoaded(target.connector, (signal) => databases(target.connector, { signal }));
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (value !== null && value.length === 0) return null;
  const names = value ?? (target.database === "" ? [] : [target.database]);
  return (
    <SelectField
      label="Database"
      value={target.database}
      disabled={value === null}
      options={[DEFAULT_DATABASE, ...names.map((name) => ({ value: name, label: name }))]}
      onChange={(database) => onChange({ database })}
    />
  );
}

const DEFAULT_DATABASE = { value: "", label: "Default database" };
