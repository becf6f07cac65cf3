import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { session } from "./session.ts";

const HOUR_S = 3600;

/** An access token of a user, as the server makes it. `mark` tells tokens of the same user apart. */
function token(userId: number, mark: string, lifeS = HOUR_S): string {
  const claims = { user_id: userId, iat: 1_000, exp: 1_000 + lifeS, jti: mark };
  return `e30.${btoa(JSON.stringify(claims)).replaceAll("=", "")}.${mark}`;
}

/** Answer calls in this order; record them. Without further answers, the server is not reached. */
function answering(...responses: Response[]): Request[] {
  const sent: Request[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    sent.push(request);
    const response = responses.shift();
    if (response === undefined) throw new TypeError("Failed to fetch");
    return response;
  });
  return sent;
}

function renewed(access: string): Response {
  return Response.json({ status: 0, access, expires_in: HOUR_S });
}

function refused(): Response {
  return Response.json({ detail: "Token is invalid or expired", code: "token_not_valid" }, { status: 401 });
}

const paths = (sent: Request[]) => sent.map((request) => new URL(request.url).pathname);

beforeEach(() => {
  vi.useFakeTimers();
  localStorage.setItem("queryserver.session", "1");
});

afterEach(async () => {
  answering(Response.json({ status: 0 }));
  await session.end();
  session.notice.value = "";
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("the cookie of an earlier visit logs in without a form", async () => {
  const sent = answering(renewed(token(1, "a")));
  await session.resume();
  expect(session.accessToken.value).toBe(token(1, "a"));
  expect(session.isStarting.value).toBe(false);
  expect(paths(sent)).toEqual(["/api/v1/token/session/refresh"]);
  expect(sent[0]?.headers.get("X-Requested-With")).toBe("queryserver");
});

test("a first visit shows the login without a call", async () => {
  localStorage.clear();
  const sent = answering();
  await session.resume();
  expect(session.isStarting.value).toBe(false);
  expect(sent).toHaveLength(0);
});

test("a visit with a refused cookie shows the login without a reason, the next one without a call", async () => {
  const sent = answering(refused());
  await session.resume();
  await session.resume();
  expect(sent).toHaveLength(1);
  expect(session.isLoggedIn.value).toBe(false);
  expect(session.isStarting.value).toBe(false);
  expect(session.notice.value).toBe("");
});

test("the access token is replaced a minute before it expires", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  const sent = answering(renewed(token(1, "b")));
  await vi.advanceTimersByTimeAsync((HOUR_S - 61) * 1000);
  expect(sent).toHaveLength(0);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(session.accessToken.value).toBe(token(1, "b"));
});

test("calls that fail at the same time renew once", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  const sent = answering(renewed(token(1, "b")));
  expect(await Promise.all([session.renew(), session.renew(), session.renew()])).toEqual([true, true, true]);
  expect(sent).toHaveLength(1);
});

test("a refused refresh ends the session with a reason", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  answering(refused());
  expect(await session.renew()).toBe(false);
  expect(session.isLoggedIn.value).toBe(false);
  expect(session.notice.value).toBe("Your session has ended. Log in again.");
});

test("a server that does not answer ends no session, and is called again", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  answering();
  expect(await session.renew()).toBe(false);
  answering(Response.json({ status: -1, code: "database_unavailable", message: "Away." }, { status: 503 }));
  expect(await session.renew()).toBe(false);
  expect(session.accessToken.value).toBe(token(1, "a"));
  answering(renewed(token(1, "b")));
  await vi.advanceTimersByTimeAsync(31_000);
  expect(session.accessToken.value).toBe(token(1, "b"));
});

test("a login that is not remembered renews with the token in memory", async () => {
  session.begin({ access: token(1, "a"), refresh: "in memory" });
  const sent = answering(Response.json({ access: token(1, "b") }), Response.json({}));
  expect(await session.renew()).toBe(true);
  await session.end();
  expect(paths(sent)).toEqual(["/api/v1/token/refresh", "/api/v1/token/revoke"]);
  expect(await sent[1]?.json()).toEqual({ refresh: "in memory" });
});

test("a refresh token in memory is replaced by the one that the server rotates to", async () => {
  session.begin({ access: token(1, "a"), refresh: "first" });
  const sent = answering(Response.json({ access: token(1, "b"), refresh: "second" }), renewed(token(1, "c")));
  await session.renew();
  await session.renew();
  expect(await sent[1]?.json()).toEqual({ refresh: "second" });
});

test("a refresh that is answered after the logout does not log in again", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  const answers: Array<(response: Response) => void> = [];
  vi.stubGlobal("fetch", () => new Promise<Response>((resolve) => answers.push(resolve)));
  const renewal = session.renew();
  await vi.waitFor(() => expect(answers).toHaveLength(1));
  void session.end();
  answers[0]?.(renewed(token(1, "b")));
  expect(await renewal).toBe(false);
  expect(session.isLoggedIn.value).toBe(false);
});

test("a refresh that is refused after another login does not end it", async () => {
  session.begin({ access: token(1, "a"), refresh: "old" });
  const answers: Array<(response: Response) => void> = [];
  vi.stubGlobal("fetch", () => new Promise<Response>((resolve) => answers.push(resolve)));
  const renewal = session.renew();
  await vi.waitFor(() => expect(answers).toHaveLength(1));
  session.begin({ access: token(1, "b"), refresh: "new" });
  answers[0]?.(refused());
  expect(await renewal).toBe(true);
  expect(session.accessToken.value).toBe(token(1, "b"));
});

test("an API token is neither renewed nor revoked", async () => {
  const sent = answering();
  session.begin({ access: "qst_abc" });
  await vi.advanceTimersByTimeAsync(100 * HOUR_S * 1000);
  expect(session.accessToken.value).toBe("qst_abc");
  await session.end();
  expect(sent).toHaveLength(0);
  expect(session.isLoggedIn.value).toBe(false);
});

test("logging out forgets the tokens at once, also if the server is away", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  const sent = answering();
  const ending = session.end();
  expect(session.isLoggedIn.value).toBe(false);
  await ending;
  expect(paths(sent)).toEqual(["/api/v1/token/session/end"]);
  expect(sent[0]?.headers.get("Authorization")).toBe(`Bearer ${token(1, "a")}`);
});

test("logging out logs out the other tabs", async () => {
  vi.useRealTimers();
  session.begin({ access: token(1, "a"), isInCookie: true });
  const sent = answering();
  const other = new BroadcastChannel("queryserver");
  other.postMessage("ended");
  await vi.waitFor(() => expect(session.isLoggedIn.value).toBe(false));
  expect(session.notice.value).toBe("");
  // The other tab has ended the session on the server.
  expect(sent).toHaveLength(0);
  other.close();
});

test("a login in another tab logs in the tabs that wait for one", async () => {
  vi.useRealTimers();
  answering(renewed(token(1, "a")));
  const other = new BroadcastChannel("queryserver");
  other.postMessage("begun");
  await vi.waitFor(() => expect(session.accessToken.value).toBe(token(1, "a")));
  other.close();
});

test("the page starts again if the cookie has become that of another user", async () => {
  const reload = vi.spyOn(location, "reload").mockImplementation(() => undefined);
  session.begin({ access: token(1, "a"), isInCookie: true });
  answering(renewed(token(2, "b")));
  await session.renew();
  expect(reload).toHaveBeenCalledOnce();
  expect(session.accessToken.value).toBe(token(1, "a"));
});

test("a page that is shown again after it was left logs out if the session has ended", async () => {
  session.begin({ access: token(1, "a"), isInCookie: true });
  const sent = answering(refused());
  dispatchEvent(Object.assign(new Event("pageshow"), { persisted: false }));
  expect(sent).toHaveLength(0);
  dispatchEvent(Object.assign(new Event("pageshow"), { persisted: true }));
  await vi.waitFor(() => expect(session.isLoggedIn.value).toBe(false));
});

test("tabs renew one after the other", async () => {
  const request = vi.fn((_name: string, work: () => Promise<boolean>) => work());
  vi.stubGlobal("navigator", { locks: { request } });
  session.begin({ access: token(1, "a"), isInCookie: true });
  answering(renewed(token(1, "b")));
  await session.renew();
  expect(request).toHaveBeenCalledOnce();
});
