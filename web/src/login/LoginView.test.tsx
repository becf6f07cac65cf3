import { cleanup, render, screen, waitFor } from "@testing-library/preact";
import userEvent from "@testing-library/user-event";
import { LocationProvider } from "preact-iso";
import { afterEach, expect, test, vi } from "vitest";
import { session } from "../app/session.ts";
import { LoginCallback } from "./LoginCallback.tsx";
import { LoginView } from "./LoginView.tsx";

const ACCESS = "e30.e30.YWNj";
type Answers = Record<string, () => Response>;

afterEach(async () => {
  cleanup();
  await session.end();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
  sessionStorage.clear();
  history.replaceState(null, "", "/");
});

/** Answer calls by the end of their path; record them. */
function answering(answers: Answers, { password = true, issuer = "" } = {}): Request[] {
  const sent: Request[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    const path = new URL(request.url).pathname.replace("/api/v1/token/", "");
    if (path === "options") {
      return Response.json({ status: 0, password, issuer: issuer ? { name: issuer } : null, device: false });
    }
    sent.push(request);
    return answers[path]?.() ?? Response.json({ status: 0 });
  });
  return sent;
}

function show(view = <LoginView />) {
  render(<LocationProvider>{view}</LocationProvider>);
  return userEvent.setup();
}

async function logIn(remember: boolean) {
  const user = show();
  await user.type(await screen.findByLabelText("User name"), "ana");
  await user.type(screen.getByLabelText("Password"), "a long enough word");
  if (!remember) await user.click(screen.getByLabelText("Stay logged in on this device"));
  await user.click(screen.getByRole("button", { name: "Log in" }));
}

test("a login that is remembered has its refresh token in the cookie", async () => {
  const sent = answering({ session: () => Response.json({ status: 0, access: ACCESS, expires_in: 60 }) });
  await logIn(true);
  await waitFor(() => expect(session.accessToken.value).toBe(ACCESS));
  expect(new URL(sent[0]?.url ?? "").pathname).toBe("/api/v1/token/session");
  expect(sent[0]?.headers.get("X-Requested-With")).toBe("queryserver");
});

test("a login that is not remembered sets no cookie", async () => {
  const sent = answering({ auth: () => Response.json({ access: ACCESS, refresh: "r" }) });
  await logIn(false);
  await waitFor(() => expect(session.accessToken.value).toBe(ACCESS));
  expect(new URL(sent[0]?.url ?? "").pathname).toBe("/api/v1/token/auth");
});

test("a wrong password is one sentence, and the form can be sent again", async () => {
  answering({ session: () => Response.json({ detail: "No active account found" }, { status: 401 }) });
  await logIn(true);
  expect((await screen.findByRole("alert")).textContent).toBe("The user name or password is wrong.");
  expect(screen.getByRole("button", { name: "Log in" })).toHaveProperty("disabled", false);
});

test("throttled logins say when to try again", async () => {
  const body = { status: -1, code: "login_throttled", message: "Too many.", retry_after: 240 };
  answering({ session: () => Response.json(body, { status: 429, headers: { "Retry-After": "240" } }) });
  await logIn(true);
  expect((await screen.findByRole("alert")).textContent).toBe("Too many failed logins. Try again in 4 minutes.");
});

test("an API token is checked before it is used", async () => {
  answering({ verify: () => Response.json({ detail: "Token is invalid or expired" }, { status: 401 }) });
  const user = show();
  await user.click(await screen.findByRole("button", { name: "Use an API token" }));
  await user.type(screen.getByLabelText("API token"), " qst_abc ");
  await user.click(screen.getByRole("button", { name: "Log in" }));
  expect((await screen.findByRole("alert")).textContent).toBe("The API token is wrong.");
  const sent = answering({ verify: () => Response.json({}) });
  await user.click(screen.getByRole("button", { name: "Log in" }));
  await waitFor(() => expect(session.accessToken.value).toBe("qst_abc"));
  expect(await sent[0]?.json()).toEqual({ token: "qst_abc" });
});

test("a server without passwords offers the issuer only", async () => {
  answering({}, { password: false, issuer: "Example login" });
  show();
  expect(await screen.findByRole("button", { name: "Log in with Example login" })).toBeTruthy();
  expect(screen.queryByLabelText("Password")).toBeNull();
});

test("the issuer's page is opened, and the address to return to is kept", async () => {
  history.replaceState(null, "", "/results/abc");
  const assign = vi.spyOn(location, "assign").mockImplementation(() => undefined);
  const url = "https://login.example.com/authorize?state=s";
  answering({ "oidc/begin": () => Response.json({ status: 0, url }) }, { issuer: "Example login" });
  const user = show();
  await user.click(await screen.findByRole("button", { name: "Log in with Example login" }));
  await waitFor(() => expect(assign).toHaveBeenCalledWith(url));
  expect(JSON.parse(sessionStorage.getItem("queryserver.login") ?? "")).toEqual({
    target: "/results/abc",
    remember: true,
  });
});

test("the callback completes the login, and its code leaves the address bar", async () => {
  history.replaceState(null, "", "/login/callback?code=c&state=s&iss=https%3A%2F%2Flogin.example.com");
  sessionStorage.setItem("queryserver.login", JSON.stringify({ target: "/files", remember: false }));
  const sent = answering({
    "oidc/finish": () => Response.json({ status: 0, access: ACCESS, expires_in: 60, refresh: "r" }),
  });
  show(<LoginCallback />);
  await waitFor(() => expect(session.accessToken.value).toBe(ACCESS));
  expect(await sent[0]?.json()).toEqual({ code: "c", state: "s", iss: "https://login.example.com", remember: false });
  await waitFor(() => expect(location.pathname + location.search).toBe("/files"));
});

test("a refusal of the issuer is shown as text, with a way back", async () => {
  history.replaceState(null, "", "/login/callback?error=server_error&error_description=%3Cb%3ENo%3C%2Fb%3E");
  sessionStorage.setItem("queryserver.login", JSON.stringify({ target: "/files", remember: false }));
  const sent = answering({});
  show(<LoginCallback />);
  expect((await screen.findByRole("alert")).textContent).toBe("The issuer refused the login: <b>No</b>");
  expect(screen.getByRole("link", { name: "Back to the login" }).getAttribute("href")).toBe("/login");
  expect(sent).toHaveLength(0);
});

test("a link of another site cannot put its text on the login page", async () => {
  history.replaceState(null, "", "/login/callback?error=Call+5550100+now&error_description=Call+5550100+now");
  answering({});
  show(<LoginCallback />);
  expect((await screen.findByRole("alert")).textContent).toBe("The issuer refused the login.");
});
