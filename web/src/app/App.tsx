import { useEffect } from "preact/hooks";
import { LocationProvider, useLocation } from "preact-iso";
import { LoginCallback } from "../login/LoginCallback.tsx";
import { LoginView } from "../login/LoginView.tsx";
import { safeTarget } from "../login/target.ts";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { config, loadConfig } from "./config.ts";
import { at, urlPrefix } from "./prefix.ts";
import { Views } from "./routes.tsx";
import { Shell } from "./Shell.tsx";
import { session } from "./session.ts";
import { ViewBoundary } from "./ViewBoundary.tsx";

const VIEWS = "editor|results|tables|queries|history|files|import|admin|login";
/** The addresses that the console serves. Other links of the same server, such as /api/docs, leave it. */
const SCOPE = new RegExp(`^${urlPrefix}/((${VIEWS})([/?#].*)?)?$`);

export function App() {
  return (
    <LocationProvider scope={SCOPE}>
      <ViewBoundary>
        <Entrance />
      </ViewBoundary>
    </LocationProvider>
  );
}

/** Shows the login or, once the user is logged in, the view at the address. */
function Entrance() {
  const { path, query, route } = useLocation();
  const isCallback = path === at("/login/callback");
  const isLogin = path === at("/login");
  const isLoggedIn = session.isLoggedIn.value;
  useEffect(() => {
    // The callback begins a session of its own.
    if (!isCallback) void session.resume();
  }, [isCallback]);
  useEffect(() => {
    if (isLogin && isLoggedIn) route(safeTarget(query.next), true);
  }, [isLogin, isLoggedIn, query.next, route]);
  if (isCallback) return <LoginCallback />;
  if (session.isStarting.value) return <Loading label="Starting" />;
  if (!isLoggedIn) return <LoginView />;
  return isLogin ? null : <Workplace />;
}

function Workplace() {
  const { problem, reload } = useLoaded("config", loadConfig);
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (config.value === null) return <Loading label="Starting" />;
  return (
    <Shell>
      <ViewBoundary>
        <Views />
      </ViewBoundary>
    </Shell>
  );
}
