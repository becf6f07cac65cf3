import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { notify } from "../ui/Toasts.tsx";
import styles from "./people.module.css";
import { revokeTokens, updateUser } from "./people.ts";

interface Props {
  username: string;
  onClose: () => void;
  onChanged: () => void;
}

/** Sets a password, which logs the user out everywhere. */
export function PasswordDialog({ username, onClose, onChanged }: Props) {
  const [password, setPassword] = useState("");
  const save = async () => {
    await updateUser({ username, password });
    notify(`${username} has a new password.`);
    onChanged();
  };
  return (
    <FormDialog title={`Password of ${username}`} action="Set the password" onSubmit={save} onClose={onClose}>
      <TextField
        label="New password"
        type="password"
        autocomplete="new-password"
        required
        value={password}
        onInput={(event) => setPassword(event.currentTarget.value)}
      />
      <p class={styles.note}>All logins and API tokens of {username} end.</p>
    </FormDialog>
  );
}

/** Ends all logins and API tokens of a user, after a confirmation. */
export function RevokeDialog({ username, ...rest }: Props) {
  return (
    <Confirmation
      title={`Log out ${username}?`}
      action="Log out and revoke"
      done={`All logins and API tokens of ${username} have ended.`}
      work={() => revokeTokens(username)}
      {...rest}
    >
      All logins and API tokens of {username} end. Programs that use one of the tokens need a new one.
    </Confirmation>
  );
}

/** Disables or enables a user, after a confirmation. */
export function ActiveDialog({ username, isActive, ...rest }: Props & { isActive: boolean }) {
  const work = () => updateUser({ username, is_active: isActive });
  if (isActive) {
    return (
      <Confirmation
        title={`Enable ${username}?`}
        action="Enable"
        done={`${username} is enabled.`}
        work={work}
        {...rest}
      >
        {username} can log in again. Earlier logins and API tokens stay ended.
      </Confirmation>
    );
  }
  return (
    <Confirmation
      title={`Disable ${username}?`}
      action="Disable"
      done={`${username} is disabled.`}
      work={work}
      {...rest}
    >
      {username} can no longer log in. All logins and API tokens end, running statements are canceled, and results that
      were shared with {username} are not shared any more.
    </Confirmation>
  );
}

interface ConfirmationProps {
  title: string;
  action: string;
  /** The message after the action. */
  done: string;
  work: () => Promise<unknown>;
  onClose: () => void;
  onChanged: () => void;
  children: ComponentChildren;
}

/** Asks before an action that ends something. */
export function Confirmation({ title, action, done, work, onClose, onChanged, children }: ConfirmationProps) {
  const confirm = async () => {
    await work();
    notify(done);
    onChanged();
  };
  return (
    <FormDialog title={title} action={action} isDanger onSubmit={confirm} onClose={onClose}>
      <p>{children}</p>
    </FormDialog>
  );
}
