import { useState } from "preact/hooks";
import { api, data } from "../api/client.ts";
import { OWN_PAGE } from "../app/session.ts";
import { Button } from "../ui/Button.tsx";
import { LoginProblem } from "./LoginCard.tsx";
import { keepPending, safeTarget } from "./target.ts";
import { loginProblem } from "./texts.ts";

interface Props {
  name: string;
  remember: boolean;
  /** The address that is shown after the login. */
  target: string;
  kind: "normal" | "primary";
}

/** Sends the browser to the external issuer, which sends it back to the callback page. */
export function IssuerButton({ name, remember, target, kind }: Props) {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const begin = async () => {
    setBusy(true);
    setProblem("");
    try {
      const { url } = await data(api.POST("/api/v1/token/oidc/begin", { params: { header: OWN_PAGE } }));
      keepPending({ target: safeTarget(target), remember });
      location.assign(url);
    } catch (failure) {
      setProblem(loginProblem(failure, "login"));
      setBusy(false);
    }
  };
  return (
    <>
      <Button kind={kind} disabled={isBusy} onClick={() => void begin()}>
        Log in with {name}
      </Button>
      {problem ? <LoginProblem text={problem} /> : null}
    </>
  );
}
