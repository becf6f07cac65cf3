import { Copy } from "lucide-preact";
import { useState } from "preact/hooks";
import { connectors, isAdmin } from "../app/config.ts";
import { Button } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { Dialog } from "../ui/Dialog.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { CheckList } from "./CheckList.tsx";
import people from "./people.module.css";
import { createToken, LIVES, type Owner, SCOPE_TEXTS, SCOPES, type TokenForm } from "./tokens.ts";

interface Props {
  owner: Owner;
  onClose: () => void;
  /** Called with the value of the new token. */
  onCreated: (value: string) => void;
}

/** Creates an API token. */
export function NewTokenDialog({ owner, onClose, onCreated }: Props) {
  const [form, setForm] = useState<TokenForm>({
    name: "",
    username: owner.whose === "user" ? owner.username : "",
    scopes: ["query:read"],
    connectors: [],
    days: "90",
  });
  const change = (changed: Partial<TokenForm>) => setForm((before) => ({ ...before, ...changed }));
  const scopes = SCOPES.filter((scope) => scope !== "admin" || isAdmin.value);
  return (
    <FormDialog
      title="New API token"
      action="Create the token"
      onSubmit={async () => onCreated(await createToken(form))}
      onClose={onClose}
    >
      <TextField
        label="Name"
        autocomplete="off"
        placeholder="What uses the token"
        required
        value={form.name}
        onInput={(event) => change({ name: event.currentTarget.value })}
      />
      {owner.whose === "own" ? null : (
        <TextField
          label="User"
          autocomplete="off"
          placeholder="You"
          hint="The token has the rights of this user."
          value={form.username}
          onInput={(event) => change({ username: event.currentTarget.value })}
        />
      )}
      <CheckList
        legend="Allows"
        options={scopes.map((scope) => ({ value: scope, label: SCOPE_TEXTS[scope] }))}
        chosen={form.scopes}
        onChange={(chosen) => change({ scopes: SCOPES.filter((scope) => chosen.includes(scope)) })}
      />
      {form.scopes.includes("admin") || connectors.value.length === 0 ? null : (
        <CheckList
          legend="Data sources"
          hint="Without a choice: all that the user may use."
          options={connectors.value.map(({ id, displayName }) => ({ value: id, label: displayName }))}
          chosen={form.connectors}
          onChange={(chosen) => change({ connectors: chosen })}
        />
      )}
      <SelectField label="Expires after" value={form.days} options={LIVES} onChange={(days) => change({ days })} />
    </FormDialog>
  );
}

/** Shows the value of a new token, which the server does not return again. */
export function ValueDialog({ value, onClose }: { value: string; onClose: () => void }) {
  return (
    <Dialog
      title="The new API token"
      onClose={onClose}
      actions={
        <Button kind="primary" onClick={onClose}>
          Done
        </Button>
      }
    >
      <div class={people.value}>
        <TextField label="Token" value={value} readonly />
        <Button onClick={() => void copyText(value, "The token is copied.")}>
          <Copy size={16} aria-hidden />
          Copy
        </Button>
      </div>
      <p class={people.note}>
        Copy the token now: it is not shown again. Programs send it in the header <code>Authorization: Bearer</code>.
      </p>
    </Dialog>
  );
}
