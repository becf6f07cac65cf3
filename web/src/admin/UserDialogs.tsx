import { useState } from "preact/hooks";
import { Dialog } from "../ui/Dialog.tsx";
import { CheckField, SelectField, TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { CheckList } from "./CheckList.tsx";
import styles from "./people.module.css";
import { type Account, account, changesOf, createUser, type UserChange, updateUser } from "./people.ts";

interface Shared {
  /** The names of all groups. */
  groups: readonly string[];
  onClose: () => void;
  onChanged: () => void;
}

interface PersonProps {
  value: Required<UserChange>;
  groups: readonly string[];
  onChange: (change: UserChange) => void;
}

/** The properties that new and existing users share. */
function PersonFields({ value, groups, onChange }: PersonProps) {
  return (
    <>
      <div class={styles.pair}>
        <TextField
          label="First name"
          autocomplete="off"
          value={value.first_name}
          onInput={(event) => onChange({ first_name: event.currentTarget.value })}
        />
        <TextField
          label="Last name"
          autocomplete="off"
          value={value.last_name}
          onInput={(event) => onChange({ last_name: event.currentTarget.value })}
        />
      </div>
      <TextField
        label="E-mail"
        type="email"
        autocomplete="off"
        value={value.email}
        onInput={(event) => onChange({ email: event.currentTarget.value })}
      />
      <CheckList
        legend="Groups"
        options={groups.map((name) => ({ value: name, label: name }))}
        chosen={value.groups}
        onChange={(chosen) => onChange({ groups: chosen })}
      />
      <CheckField
        label="Administrator"
        checked={value.is_admin}
        onChange={(event) => onChange({ is_admin: event.currentTarget.checked })}
      />
    </>
  );
}

const EMPTY: Required<UserChange> = { first_name: "", last_name: "", email: "", is_admin: false, groups: [] };

/** Creates a user with a password, or a service account. */
export function NewUserDialog({ groups, onClose, onChanged }: Shared) {
  const [person, setPerson] = useState(EMPTY);
  const [username, setUsername] = useState("");
  const [kind, setKind] = useState("password");
  const [password, setPassword] = useState("");
  const isService = kind === "service";
  const create = async () => {
    const login = isService ? { is_service_account: true } : { password };
    const made = await createUser({ username: username.trim(), ...person, ...login });
    notify(`User ${made.username} created.`);
    onChanged();
  };
  return (
    <FormDialog title="New user" action="Create the user" onSubmit={create} onClose={onClose}>
      <TextField
        label="User name"
        autocomplete="off"
        required
        value={username}
        onInput={(event) => setUsername(event.currentTarget.value)}
      />
      <SelectField
        label="Login"
        value={kind}
        options={[
          { value: "password", label: "With a password" },
          { value: "service", label: "None: service account with API tokens" },
        ]}
        onChange={setKind}
      />
      {isService ? null : (
        <TextField
          label="Password"
          type="password"
          autocomplete="new-password"
          required
          value={password}
          onInput={(event) => setPassword(event.currentTarget.value)}
        />
      )}
      <PersonFields
        value={person}
        groups={groups}
        onChange={(change) => setPerson((before) => ({ ...before, ...change }))}
      />
    </FormDialog>
  );
}

interface EditProps extends Shared {
  username: string;
}

/** Changes the names, the e-mail address, the groups and the administrator flag of a user. */
export function EditUserDialog({ username, ...rest }: EditProps) {
  const { value, problem, reload } = useLoaded(username, (signal) => account(username, signal));
  if (value) return <EditForm stored={value} {...rest} />;
  return (
    <Dialog title={`User ${username}`} onClose={rest.onClose}>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : <Loading label="Loading the user" />}
    </Dialog>
  );
}

function EditForm({ stored, groups, onClose, onChanged }: Shared & { stored: Account }) {
  const [person, setPerson] = useState<Required<UserChange>>(stored);
  const save = async () => {
    await updateUser({ username: stored.username, ...changesOf(stored, person) });
    notify(`User ${stored.username} changed.`);
    onChanged();
  };
  return (
    <FormDialog title={`User ${stored.username}`} action="Save" onSubmit={save} onClose={onClose}>
      <p class={styles.note}>{loginText(stored)}</p>
      <PersonFields
        value={person}
        groups={groups}
        onChange={(change) => setPerson((before) => ({ ...before, ...change }))}
      />
      {stored.superuser && !stored.is_admin ? (
        <p class={styles.note}>This user is an administrator by a group.</p>
      ) : null}
    </FormDialog>
  );
}

function loginText(user: Account): string {
  if (user.is_service_account) return "A service account: it has API tokens, and no login.";
  const issuers = user.identities.map(({ issuer, subject }) => `${subject} of ${issuer}`);
  const ways = [...(user.has_password ? ["a password"] : []), ...issuers];
  return ways.length === 0 ? "This user has no login yet." : `Logs in with ${ways.join(", ")}.`;
}
