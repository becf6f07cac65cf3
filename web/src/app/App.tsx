import { useEffect, useState } from "preact/hooks";
import { ErrorBoundary, LocationProvider } from "preact-iso";
import { LoginView } from "../login/LoginView.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { config, loadConfig } from "./config.ts";
import { urlPrefix } from "./prefix.ts";
import { Views } from "./routes.tsx";
import { Shell } from "./Shell.tsx";
import { session } from "./session.ts";

const VIEWS = "editor|results|tables|queries|history|files|import|admin|login";
/** The addresses that the console serves. Other links of the same server, such as /api/docs, leave it. */
const SCOPE = new RegExp(`^${urlPrefix}/((${VIEWS})([/?#].*)?)?$`);

export function App() {
  return (
    <LocationProvider scope={SCOPE}>
      <ErrorBoundary onError={(problem) => setTimeout(() => Promise.reject(problem))}>
        {session.isLoggedIn.value ? <Workplace /> : <LoginView />}
      </ErrorBoundary>
    </LocationProvider>
  );
}

function Workplace() {
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    loadConfig().catch(setProblem);
    return () => {
      config.value = null;
    };
  }, []);
  if (problem) return <ErrorMessage problem={problem} onRetry={() => location.reload()} />;
  if (config.value === null) return <Loading label="Starting" />;
  return (
    <Shell>
      <Views />
    </Shell>
  );
}
