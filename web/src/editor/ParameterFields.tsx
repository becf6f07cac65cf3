import { useEffect, useMemo, useRef } from "preact/hooks";
import styles from "./ParameterFields.module.css";
import {
  isGiven,
  type ParameterField,
  type ParameterType,
  type ParameterValue,
  parameterFields,
  TYPES,
} from "./sql/parameters.ts";
import { parameterType } from "./tabContent.ts";
import type { EditorTab } from "./tabs.ts";
import { connectorOf, type Workspace } from "./workspace.ts";

interface Props {
  tab: EditorTab;
  workspace: Workspace;
}

const NONE: ParameterValue = { text: "", type: "auto" };
const LABELS: Partial<Record<ParameterType, string>> = { auto: "any type", null: "NULL", varchar: "text" };
const CHOICES: readonly ParameterType[] = ["auto", ...TYPES, "null"];
/** More are never shown: the server accepts no more in a saved query (Contract documents 4). */
const MAX_FIELDS = 100;

/** A field for each parameter of the text. Enter runs the statement. */
export function ParameterFields({ tab, workspace }: Props) {
  const { text, parameters } = tab.content.value;
  const dialect = connectorOf(tab.content.value)?.dialect ?? "";
  const fields = useMemo(() => parameterFields(text, dialect).slice(0, MAX_FIELDS), [text, dialect]);
  const form = useRef<HTMLFormElement>(null);
  const missing = workspace.missing.value;
  // Each run sets a new list; a change of a field does not, so that the focus stays where the user types.
  useEffect(() => {
    if (missing.length > 0) form.current?.querySelector<HTMLInputElement>("[aria-invalid=true]")?.focus();
  }, [missing]);
  if (fields.length === 0) return null;
  const change = (name: string, value: ParameterValue) => {
    tab.update({ parameters: { ...tab.content.peek().parameters, [name]: value } });
  };
  return (
    <form
      ref={form}
      class={styles.fields}
      aria-label="Parameters"
      onSubmit={(event) => {
        event.preventDefault();
        workspace.run();
      }}
    >
      {fields.map((field) => (
        <Field
          key={field.name}
          field={field}
          value={parameters[field.name] ?? NONE}
          isMissing={missing.includes(field.name) && !isGiven(parameters[field.name], field)}
          onChange={(value) => change(field.name, value)}
        />
      ))}
      <button type="submit" class="visually-hidden" tabIndex={-1}>
        Run
      </button>
    </form>
  );
}

interface FieldProps {
  field: ParameterField;
  value: ParameterValue;
  isMissing: boolean;
  onChange: (value: ParameterValue) => void;
}

function Field({ field: { name, isVariable, fallback }, value, isMissing, onChange }: FieldProps) {
  const id = `parameter-${name}`;
  return (
    <div class={styles.field}>
      <label for={id}>{isVariable ? name : `:${name}`}</label>
      <input
        id={id}
        value={value.type === "null" ? "" : value.text}
        placeholder={value.type === "null" ? "NULL" : (fallback ?? "")}
        disabled={value.type === "null"}
        aria-invalid={isMissing}
        aria-describedby={isMissing ? `${id}-missing` : undefined}
        autocomplete="off"
        onInput={(event) => onChange({ ...value, text: event.currentTarget.value })}
      />
      {isVariable ? null : (
        <select
          aria-label={`Type of ${name}`}
          value={value.type}
          onChange={(event) => onChange({ ...value, type: parameterType(event.currentTarget.value) })}
        >
          {CHOICES.map((type) => (
            <option key={type} value={type}>
              {LABELS[type] ?? type}
            </option>
          ))}
        </select>
      )}
      {isMissing ? (
        <span id={`${id}-missing`} class={styles.missing} role="alert">
          needs a value
        </span>
      ) : null}
    </div>
  );
}
