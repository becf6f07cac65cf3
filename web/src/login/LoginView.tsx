import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { api, data, type Schemas } from "../api/client.ts";
import { session } from "../app/session.ts";
import { Button } from "../ui/Button.tsx";
import { CheckField } from "../ui/Field.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { IssuerButton } from "./IssuerButton.tsx";
import { LoginCard } from "./LoginCard.tsx";
import styles from "./LoginView.module.css";
import { PasswordForm } from "./PasswordForm.tsx";
import { TokenForm } from "./TokenForm.tsx";

/** The ways to log in. It is shown at the address that the user has opened, which is shown again after the login. */
export function LoginView() {
  const options = useLoaded("options", (signal) => data(api.GET("/api/v1/token/options", { signal })));
  const retry = () => {
    // The server was away: the cookie of an earlier visit may still log the user in.
    void session.resume();
    options.reload();
  };
  return (
    <LoginCard>
      {session.notice.value ? <p class={styles.notice}>{session.notice.value}</p> : null}
      {options.problem ? <ErrorMessage problem={options.problem} onRetry={retry} /> : null}
      {options.value ? <Ways options={options.value} /> : null}
      {options.value || options.problem ? null : <Loading label="Starting" />}
    </LoginCard>
  );
}

function Ways({ options: { password, issuer } }: { options: Schemas["LoginOptions"] }) {
  const { url } = useLocation();
  const [remember, setRemember] = useState(true);
  const [byToken, setByToken] = useState(!password && issuer === null);
  if (byToken) {
    return (
      <>
        <TokenForm />
        {password || issuer ? (
          <Button kind="quiet" onClick={() => setByToken(false)}>
            Other ways to log in
          </Button>
        ) : null}
      </>
    );
  }
  const choice = (
    <CheckField
      label="Stay logged in on this device"
      checked={remember}
      onChange={(event) => setRemember(event.currentTarget.checked)}
    />
  );
  return (
    <>
      {password ? <PasswordForm remember={remember}>{issuer ? null : choice}</PasswordForm> : null}
      {password && issuer ? <div class={styles.or}>or</div> : null}
      {issuer ? (
        <IssuerButton name={issuer.name} remember={remember} target={url} kind={password ? "normal" : "primary"} />
      ) : null}
      <div class={styles.choices}>
        {password && !issuer ? null : choice}
        <Button kind="quiet" onClick={() => setByToken(true)}>
          Use an API token
        </Button>
      </div>
    </>
  );
}
