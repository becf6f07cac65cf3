import type { ComponentChildren } from "preact";
import { api, data } from "../api/client.ts";
import { type Login, OWN_PAGE } from "../app/session.ts";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { LoginProblem } from "./LoginCard.tsx";
import styles from "./LoginView.module.css";
import { fieldOf, useLogin } from "./useLogin.ts";

interface Props {
  remember: boolean;
  /** Shown above the button. */
  children?: ComponentChildren;
}

export function PasswordForm({ remember, children }: Props) {
  const { form, problem, isBusy, logIn } = useLogin("user name or password");
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const body = { username: fieldOf(event, "username"), password: fieldOf(event, "password") };
    void logIn(() => passwordLogin(body, remember));
  };
  return (
    <form ref={form} class={styles.form} onSubmit={submit}>
      <TextField label="User name" name="username" autocomplete="username" required />
      <TextField label="Password" name="password" type="password" autocomplete="current-password" required />
      {children}
      {problem ? <LoginProblem text={problem} /> : null}
      <Button kind="primary" type="submit" disabled={isBusy}>
        Log in
      </Button>
    </form>
  );
}

/** Log in with a password. If the user stays logged in, the refresh token is in the cookie, otherwise in memory. */
async function passwordLogin(body: { username: string; password: string }, remember: boolean): Promise<Login> {
  if (!remember) return await data(api.POST("/api/v1/token/auth", { body }));
  const params = { header: OWN_PAGE };
  return { ...(await data(api.POST("/api/v1/token/session", { params, body }))), isInCookie: true };
}
