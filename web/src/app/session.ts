/**
 * The login of this page. The access token is kept in memory. The refresh token is in a cookie that scripts cannot read
 * or, if the user does not stay logged in, in memory too (Contract platform 3.11).
 */
import { computed, signal } from "@preact/signals";
import createClient from "openapi-fetch";
import type { paths } from "../api/schema.d.ts";
import { claimsOf } from "./claims.ts";
import { urlPrefix } from "./prefix.ts";
import { browserStorage } from "./storage.ts";

/** Pages of other origins cannot send this header. The calls that use a cookie require it. */
export const OWN_PAGE = { "X-Requested-With": "queryserver" } as const;

export interface Login {
  access: string;
  /** The refresh token, if this page keeps it in memory. An API token has none. */
  refresh?: string;
  /** Whether the refresh token is in the cookie. */
  isInCookie?: boolean;
}

type RefreshToken = { place: "cookie" } | { place: "memory"; token: string } | { place: "none" };
/** What a tab sends to the others of its browser: a login in the cookie has begun, or the user has logged out. */
type Message = "begun" | "ended";

const NONE: RefreshToken = { place: "none" };
const COOKIE: RefreshToken = { place: "cookie" };
/** Kept in the browser while it may have the cookie, so that a first visit does not begin with a refused call. */
const COOKIE_MARK = `queryserver.session${urlPrefix}`;
const CALL_TIMEOUT_MS = 15_000;
/** The access token is replaced this long before it expires, or after half of a short life. */
const RENEW_BEFORE_S = 60;
const RETRY_AFTER_S = 30;
const MAX_TIMER_MS = 2 ** 31 - 1;
/** The statuses with which the server refuses a refresh token. All others are passing failures. */
const REFUSALS = new Set([400, 401, 403]);
const RESUME_AFTER_MS = 5000;
const UNANSWERED = "The server does not answer. You will be logged in when it does.";
const SESSION_ENDED = "Your session has ended. Log in again.";

/** The calls of the session itself, which are not repeated after a 401. */
const calls = createClient<paths>({ baseUrl: urlPrefix, fetch: (request) => fetch(request) });
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(`queryserver${urlPrefix}`);

const accessToken = signal<string | null>(null);
const isStarting = signal(true);
const notice = signal("");
let refreshToken: RefreshToken = NONE;
let timer: ReturnType<typeof setTimeout> | undefined;
let renewing: Promise<boolean> | null = null;
let ending: Promise<void> = Promise.resolve();

export const session = {
  accessToken,
  isLoggedIn: computed(() => accessToken.value !== null),
  /** The id of the user; null without a login, and for API tokens. */
  userId: computed(() => (accessToken.value === null ? null : (claimsOf(accessToken.value)?.userId ?? null))),
  /** Whether it is still unknown if the cookie of an earlier visit logs the user in. */
  isStarting,
  /** Why the user has to log in again; empty after a logout and on a first visit. */
  notice,

  /** Start the session with the tokens of a login. */
  begin({ access, refresh, isInCookie = false }: Login): void {
    refreshToken = isInCookie ? COOKIE : refresh ? { place: "memory", token: refresh } : NONE;
    if (isInCookie) browserStorage.set(COOKIE_MARK, "1");
    accept(access);
    if (isInCookie) send("begun");
  },

  /** Log in with the cookie of an earlier visit or of another tab, if there is one. */
  async resume(): Promise<void> {
    if (accessToken.value === null && browserStorage.get(COOKIE_MARK) !== null) {
      refreshToken = COOKIE;
      await session.renew();
      if (accessToken.value === null) {
        const isRefused = browserStorage.get(COOKIE_MARK) === null;
        forget(isRefused ? "" : UNANSWERED);
        if (!isRefused) timer = setTimeout(() => void session.resume(), RESUME_AFTER_MS);
      }
    }
    isStarting.value = false;
  },

  /**
   * Replace the access token. Returns whether there is a new one. The session ends if the server refuses, but not if it
   * does not answer.
   */
  renew(): Promise<boolean> {
    renewing ??= inOneTab(refresh).finally(() => {
      renewing = null;
    });
    return renewing;
  },

  /** Log out in all tabs. The tokens are revoked on the server; the page forgets them also if that fails. */
  end(): Promise<void> {
    send("ended");
    ending = end();
    return ending;
  },

  /** Wait until a logout has reached the server: its response deletes the cookie, which must not be that of a new login. */
  async hasEnded(): Promise<void> {
    await ending;
  },
};

channel?.addEventListener("message", ({ data }: MessageEvent<unknown>) => {
  if (data === "ended" && accessToken.value !== null) {
    // The tab in which the user has logged out ends the session of the cookie.
    if (isInCookie()) forget("");
    else void end();
  }
  // Another tab may have logged in as another user: `refresh` compares.
  if (data === "begun") void (accessToken.value === null ? session.resume() : isInCookie() && session.renew());
});

// A page that the browser kept when it was left has missed the logout and the login of other tabs.
addEventListener("pageshow", ({ persisted }) => {
  if (persisted && isInCookie()) void session.renew();
});

function isInCookie(): boolean {
  return refreshToken.place === "cookie";
}

function send(message: Message): void {
  channel?.postMessage(message);
}

function accept(access: string): void {
  const before = accessToken.value === null ? null : claimsOf(accessToken.value);
  const claims = claimsOf(access);
  if (before !== null && before.userId !== claims?.userId) {
    // What the page shows belongs to the former user.
    location.reload();
    return;
  }
  accessToken.value = access;
  notice.value = "";
  isStarting.value = false;
  if (claims !== null && refreshToken.place !== "none") renewIn(renewalS(claims.lifeS));
}

function forget(reason: string): void {
  clearTimeout(timer);
  refreshToken = NONE;
  accessToken.value = null;
  notice.value = reason;
}

function renewalS(lifeS: number): number {
  return lifeS > 2 * RENEW_BEFORE_S ? lifeS - RENEW_BEFORE_S : lifeS / 2;
}

function renewIn(delayS: number): void {
  clearTimeout(timer);
  timer = setTimeout(() => void session.renew(), Math.min(delayS * 1000, MAX_TIMER_MS));
}

/** Run one refresh at a time in all tabs, so that each sends the cookie that the one before has set. */
async function inOneTab(work: () => Promise<boolean>): Promise<boolean> {
  // Browsers have locks in secure contexts only. Without, the server accepts a cookie twice within 30 s.
  const locks: LockManager | null | undefined = navigator.locks;
  if (!locks || !isInCookie()) return await work();
  return await locks.request(`queryserver${urlPrefix}`, work);
}

async function refresh(): Promise<boolean> {
  const sent = refreshToken;
  const response = await sendRefresh(sent);
  // The user has logged out in the meantime, or in by another way.
  if (sent !== refreshToken) return accessToken.value !== null;
  if (response?.data !== undefined) {
    const { access, refresh: next } = response.data;
    // With `rotate_refresh_tokens`, the token that was sent is not accepted again.
    if (next !== undefined && sent.place === "memory") refreshToken = { place: "memory", token: next };
    accept(access);
    return true;
  }
  if (response === null || REFUSALS.has(response.response.status)) {
    if (sent.place === "cookie") browserStorage.remove(COOKIE_MARK);
    forget(accessToken.value === null ? "" : SESSION_ENDED);
  } else if (accessToken.value !== null) {
    renewIn(RETRY_AFTER_S);
  }
  return false;
}

interface Renewal {
  response: Pick<Response, "status">;
  data?: { access: string; refresh?: string };
}

/** Send the refresh token. Returns null without one, and status 0 if the server did not answer. */
async function sendRefresh(kept: RefreshToken): Promise<Renewal | null> {
  if (kept.place === "none") return null;
  const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
  try {
    if (kept.place === "cookie") {
      return await calls.POST("/api/v1/token/session/refresh", { params: { header: OWN_PAGE }, signal });
    }
    return await calls.POST("/api/v1/token/refresh", { body: { refresh: kept.token }, signal });
  } catch {
    return { response: { status: 0 } };
  }
}

async function end(): Promise<void> {
  const kept = refreshToken;
  const headers = accessToken.value === null ? {} : { Authorization: `Bearer ${accessToken.value}` };
  if (kept.place === "cookie") browserStorage.remove(COOKIE_MARK);
  forget("");
  const options = { signal: AbortSignal.timeout(CALL_TIMEOUT_MS), keepalive: true };
  try {
    if (kept.place === "cookie") {
      await calls.POST("/api/v1/token/session/end", { params: { header: OWN_PAGE }, headers, ...options });
    } else if (kept.place === "memory") {
      await calls.POST("/api/v1/token/revoke", { body: { refresh: kept.token }, ...options });
    }
  } catch {
    // The server did not answer: the tokens expire by themselves.
  }
}
