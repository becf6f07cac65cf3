import { useEffect, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { api, data } from "../api/client.ts";
import { at } from "../app/prefix.ts";
import { OWN_PAGE, session } from "../app/session.ts";
import { Loading } from "../ui/States.tsx";
import { LoginCard, LoginProblem } from "./LoginCard.tsx";
import styles from "./LoginView.module.css";
import { takePending } from "./target.ts";
import { loginProblem } from "./texts.ts";

const ERROR_CODE = /^[a-z_]{1,40}$/;
const MAX_REASON_CHARACTERS = 300;

/** The page to which the external issuer sends the browser back. It completes the login, and shows the target. */
export function LoginCallback() {
  const { route } = useLocation();
  const [problem, setProblem] = useState("");
  // biome-ignore lint/correctness/useExhaustiveDependencies: a code can be used once
  useEffect(() => {
    const query = new URLSearchParams(location.search);
    const { target, remember, isOfThisTab } = takePending();
    // Neither the code nor the state stays in the address bar and in the history.
    history.replaceState(null, "", at("/login/callback"));
    const refusal = query.get("error");
    if (refusal !== null) {
      setProblem(refusalText(refusal, isOfThisTab ? query.get("error_description") : null));
      return;
    }
    finish(query, remember).then(
      () => route(target, true),
      (failure: unknown) => setProblem(loginProblem(failure, "login")),
    );
  }, []);
  return (
    <LoginCard>
      {problem ? (
        <>
          <LoginProblem text={problem} />
          <a class={styles.back} href={at("/login")}>
            Back to the login
          </a>
        </>
      ) : (
        <Loading label="Logging in" />
      )}
    </LoginCard>
  );
}

async function finish(query: URLSearchParams, remember: boolean): Promise<void> {
  const [code, state, iss] = ["code", "state", "iss"].map((name) => query.get(name));
  const body = { code: code ?? "", state: state ?? "", remember, ...(iss ? { iss } : {}) };
  const tokens = await data(api.POST("/api/v1/token/oidc/finish", { params: { header: OWN_PAGE }, body }));
  session.begin({ ...tokens, isInCookie: remember });
}

/** Return the reason of a refusal. `description` is null if the address may be a link of another site. */
function refusalText(code: string, description: string | null): string {
  if (code === "access_denied") return "The login was denied or canceled at the issuer.";
  const reason = description || (ERROR_CODE.test(code) ? code : "");
  return `The issuer refused the login${reason ? `: ${reason.slice(0, MAX_REASON_CHARACTERS)}` : "."}`;
}
