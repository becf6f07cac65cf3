import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import styles from "./connectors.module.css";
import { type UrlParts, urlParts, urlText } from "./driverUrl.ts";
import { Refusal } from "./Refusal.tsx";
import { SecretField } from "./SecretField.tsx";

interface Props {
  label: string;
  hint: ComponentChildren;
  problem?: string;
  /** A URL of the type. */
  example: string;
  value: string;
  initial: string;
  onChange: (value: string) => void;
}

/** A driver URL, as its parts or as one text. A URL that cannot be built from parts is a text. */
export function UrlField({ value, initial, example, onChange, ...about }: Props) {
  const [isText, setText] = useState(false);
  const parts = urlParts(value);
  const switchTo = (
    <Button kind="quiet" disabled={isText && parts === null} onClick={() => setText(!isText)}>
      {isText || parts === null ? "Edit the parts" : "Edit as one URL"}
    </Button>
  );
  if (isText || parts === null) {
    return (
      <div class={styles.url}>
        <TextField
          {...about}
          value={value}
          placeholder={example}
          autocomplete="off"
          onInput={(event) => {
            setText(true);
            onChange(event.currentTarget.value);
          }}
        />
        {switchTo}
      </div>
    );
  }
  return (
    <fieldset class={styles.url}>
      <legend class={styles.legend}>{about.label}</legend>
      <PartFields
        parts={parts}
        example={urlParts(example)}
        initialPassword={urlParts(initial)?.password ?? ""}
        onChange={(changed) => onChange(urlText({ ...parts, ...changed }))}
      />
      {about.problem ? <Refusal text={about.problem} /> : null}
      <div class={styles.soft}>{about.hint}</div>
      {switchTo}
    </fieldset>
  );
}

interface PartsProps {
  parts: UrlParts;
  example: UrlParts | null;
  initialPassword: string;
  onChange: (changed: Partial<UrlParts>) => void;
}

function PartFields({ parts, example, initialPassword, onChange }: PartsProps) {
  const field = (label: string, name: keyof UrlParts) => (
    <TextField
      label={label}
      value={parts[name]}
      placeholder={example?.[name] ?? ""}
      autocomplete="off"
      onInput={(event) => onChange({ [name]: event.currentTarget.value.trim() })}
    />
  );
  return (
    <div class={styles.parts}>
      {field("Host", "host")}
      {field("Port", "port")}
      {field("Database", "path")}
      {field("User name", "username")}
      <SecretField
        label="Password"
        value={parts.password}
        initial={initialPassword}
        onChange={(password) => onChange({ password })}
      />
      {field("Driver", "driver")}
      {field("Options", "query")}
    </div>
  );
}
