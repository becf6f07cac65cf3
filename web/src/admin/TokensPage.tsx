import { useState } from "preact/hooks";
import { SelectField, TextField } from "../ui/Field.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import styles from "./admin.module.css";
import { TokenList } from "./TokenList.tsx";
import type { Owner } from "./tokens.ts";

const CHOICES: ReadonlyArray<{ value: Owner["whose"]; label: string }> = [
  { value: "all", label: "All users" },
  { value: "own", label: "You" },
  { value: "user", label: "One user" },
];

/** The API tokens of all users, for administrators. */
export function TokensPage() {
  const [whose, setWhose] = useState<Owner["whose"]>("all");
  const [typed, setTyped] = useState("");
  const username = useDebounced(typed);
  const owner: Owner = whose === "user" ? (username ? { whose, username } : { whose: "all" }) : { whose };
  return (
    <>
      <div class={styles.bar}>
        <SelectField
          label="Tokens of"
          value={whose}
          options={CHOICES}
          onChange={(value) => setWhose(CHOICES.find((one) => one.value === value)?.value ?? "all")}
        />
        {whose === "user" ? (
          <TextField
            label="User"
            type="search"
            placeholder="Exact user name"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value.trim())}
          />
        ) : null}
      </div>
      <TokenList key={JSON.stringify(owner)} owner={owner} />
    </>
  );
}
