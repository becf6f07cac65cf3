import { api, data } from "../api/client.ts";
import type { Login } from "../app/session.ts";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { LoginProblem } from "./LoginCard.tsx";
import styles from "./LoginView.module.css";
import { fieldOf, useLogin } from "./useLogin.ts";

export function TokenForm() {
  const { form, problem, isBusy, logIn } = useLogin("API token");
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const token = fieldOf(event, "token").trim();
    void logIn(() => tokenLogin(token));
  };
  return (
    <form ref={form} class={styles.form} onSubmit={submit}>
      <TextField
        label="API token"
        name="token"
        type="password"
        autocomplete="off"
        hint="It is kept until this page is closed or reloaded, and only in its memory."
        required
      />
      {problem ? <LoginProblem text={problem} /> : null}
      <Button kind="primary" type="submit" disabled={isBusy}>
        Log in
      </Button>
    </form>
  );
}

async function tokenLogin(token: string): Promise<Login> {
  await data(api.POST("/api/v1/token/verify", { body: { token } }));
  return { access: token };
}
