import { connectors } from "../app/config.ts";
import { SelectField, TextField } from "../ui/Field.tsx";
import { EmptyState } from "../ui/States.tsx";
import styles from "./ExportDialog.module.css";
import { type IfExists, type TableTarget, takesTables } from "./exports.ts";

interface Props {
  target: TableTarget;
  onChange: (target: TableTarget) => void;
}

const IF_EXISTS: ReadonlyArray<{ value: IfExists; label: string }> = [
  { value: "error", label: "Stop, and change nothing" },
  { value: "append", label: "Append the rows" },
  { value: "replace", label: "Replace the table" },
];

function targets() {
  return connectors.value.filter(({ dialect }) => takesTables(dialect));
}

export function initialTable(): TableTarget {
  return { connector: targets()[0]?.id ?? "", database: "", table: "", ifExists: "error" };
}

/** The table that takes the rows. */
export function TableTargetFields({ target, onChange }: Props) {
  const options = targets().map(({ id, displayName }) => ({ value: id, label: displayName }));
  const dialect = connectors.value.find(({ id }) => id === target.connector)?.dialect;
  if (options.length === 0) return <EmptyState title="No connector can take tables." />;
  // Phoenix cannot rename tables, so nothing can take the place of one.
  const choices = IF_EXISTS.filter(({ value }) => value !== "replace" || dialect !== "phoenix");
  return (
    <>
      <SelectField
        label="Connector"
        value={target.connector}
        options={options}
        onChange={(connector) => onChange({ ...target, connector, ifExists: "error" })}
      />
      <div class={styles.pair}>
        <TextField
          label="Database"
          hint="Empty: the default one"
          value={target.database}
          onInput={(event) => onChange({ ...target, database: event.currentTarget.value })}
        />
        <TextField
          label="Table"
          value={target.table}
          required
          onInput={(event) => onChange({ ...target, table: event.currentTarget.value })}
        />
      </div>
      <SelectField
        label="If the table exists"
        value={target.ifExists}
        options={choices}
        onChange={(value) =>
          onChange({ ...target, ifExists: choices.find((one) => one.value === value)?.value ?? "error" })
        }
      />
    </>
  );
}
