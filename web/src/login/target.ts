/** Where the user goes after a login: an address of this console, never one of another site (Rule T17). */
import { isRecord } from "../api/errors.ts";
import { at, urlPrefix } from "../app/prefix.ts";

const KEY = "queryserver.login";
// biome-ignore lint/suspicious/noControlCharactersInRegex: browsers remove them, and `/\t/host` becomes `//host`
const UNSAFE = /[\u0000-\u0020\\]/;

/** What a login at the issuer must find again when the browser comes back. */
export interface PendingLogin {
  target: string;
  remember: boolean;
}

/** Return the address if it is one of this console and not of the login itself, otherwise that of the editor. */
export function safeTarget(address: string | null | undefined): string {
  const start = at("/editor");
  if (!address?.startsWith(at("/")) || address.startsWith("//") || UNSAFE.test(address)) return start;
  const url = new URL(address, location.origin);
  const isLogin = url.pathname === at("/login") || url.pathname.startsWith(at("/login/"));
  if (url.origin !== location.origin || !url.pathname.startsWith(`${urlPrefix}/`) || isLogin) return start;
  return url.pathname + url.search + url.hash;
}

/** Keep the login in this tab while the browser is at the issuer. It contains no secret. */
export function keepPending(login: PendingLogin): void {
  sessionStorage.setItem(KEY, JSON.stringify(login));
}

/** Return what was kept, once. A tab that has kept nothing gets the defaults. */
export function takePending(): PendingLogin {
  const text = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  const kept: unknown = text === null ? null : JSON.parse(text);
  if (!isRecord(kept)) return { target: safeTarget(null), remember: true };
  return { target: safeTarget(String(kept.target)), remember: kept.remember !== false };
}
