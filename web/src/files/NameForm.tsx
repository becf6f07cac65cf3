import { useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import styles from "./picker.module.css";

interface Props {
  label: string;
  action: string;
  onName: (name: string) => void;
}

/** One name and a button. It is not a form element, since it may stand inside of another form. */
export function NameForm({ label, action, onName }: Props) {
  const [name, setName] = useState("");
  const isEmpty = name.trim() === "";
  return (
    <div class={styles.nameForm}>
      <TextField
        label={label}
        value={name}
        autofocus
        onInput={(event) => setName(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter") return;
          event.preventDefault();
          if (!isEmpty) onName(name.trim());
        }}
      />
      <Button disabled={isEmpty} onClick={() => onName(name.trim())}>
        {action}
      </Button>
    </div>
  );
}
