import type { ComponentChildren } from "preact";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { MASK } from "./connectorForm.ts";
import styles from "./connectors.module.css";

interface Props {
  label: string;
  hint?: ComponentChildren;
  problem?: string;
  value: string;
  /** The value when the form was opened; the mask if a secret is stored. */
  initial: string;
  onChange: (value: string) => void;
}

/** A secret. A stored one is not shown, and is kept until another one is given. */
export function SecretField({ value, initial, onChange, ...about }: Props) {
  const isStored = value === MASK;
  return (
    <div class={styles.secret}>
      <TextField
        {...about}
        type={isStored ? "text" : "password"}
        value={value}
        readonly={isStored}
        autocomplete="new-password"
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      {isStored ? (
        <Button onClick={() => onChange("")} aria-label={`Replace: ${about.label}`}>
          Replace
        </Button>
      ) : null}
      {!isStored && initial === MASK ? (
        <Button onClick={() => onChange(MASK)} aria-label={`Keep the stored one: ${about.label}`}>
          Keep the stored one
        </Button>
      ) : null}
    </div>
  );
}
