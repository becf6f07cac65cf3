import { useState } from "preact/hooks";
import { api, data } from "../api/client.ts";
import icon from "../app/icon.svg";
import { session } from "../app/session.ts";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { ErrorMessage } from "../ui/States.tsx";
import styles from "./LoginView.module.css";

export function LoginView() {
  const [problem, setProblem] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);

  const logIn = async (event: SubmitEvent) => {
    event.preventDefault();
    if (!(event.currentTarget instanceof HTMLFormElement)) return;
    const form = new FormData(event.currentTarget);
    setBusy(true);
    setProblem(null);
    try {
      const body = { username: String(form.get("username")), password: String(form.get("password")) };
      session.begin(await data(api.POST("/api/v1/token/auth", { body })));
    } catch (failure) {
      setProblem(failure);
      setBusy(false);
    }
  };

  return (
    <main class={styles.page}>
      <form class={styles.card} onSubmit={logIn}>
        <div class={styles.brand}>
          <img src={icon} alt="" width={36} height={36} />
          <h1>Query Server</h1>
        </div>
        <TextField label="User name" name="username" autocomplete="username" required autofocus />
        <TextField label="Password" name="password" type="password" autocomplete="current-password" required />
        {problem ? <ErrorMessage problem={problem} /> : null}
        <Button kind="primary" type="submit" disabled={isBusy}>
          Log in
        </Button>
      </form>
    </main>
  );
}
