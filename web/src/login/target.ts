/** Where the user goes after a login: an address of this console, never one of another site (Rule T17). */
import { isRecord } from "../api/errors.ts";
import { at, urlPrefix } from "../app/prefix.ts";
import { tabStorage } from "../app/storage.ts";

const KEY = "queryserver.login";
// biome-ignore lint/suspicious/noControlCharactersInRegex: browsers remove them, and `/\t/host` becomes `//host`
const UNSAFE = /[\u0000-\u0020\\]/;

/** What a login at the issuer must find again when the browser comes back. */
export interface PendingLogin {
  target: string;
  remember: boolean;
}

/** A login that comes back. Links of other sites lead to the same address: this tab has not begun those. */
interface ReturnedLogin extends PendingLogin {
  isOfThisTab: boolean;
}

/** Return the address if it is one of this console and not of the login itself, otherwise that of the editor. */
export function safeTarget(address: string | null | undefined): string {
  const start = at("/editor");
  if (!address?.startsWith(at("/")) || address.startsWith("//") || UNSAFE.test(address)) return start;
  const url = new URL(address, location.origin);
  const isLogin = url.pathname === at("/login") || url.pathname.startsWith(at("/login/"));
  // `/x/..//host` becomes `//host`, which is an address of another site.
  const isOwn = url.pathname.startsWith(`${urlPrefix}/`) && !url.pathname.startsWith("//");
  if (url.origin !== location.origin || !isOwn || isLogin) return start;
  return url.pathname + url.search + url.hash;
}

/** Keep the login in this tab while the browser is at the issuer. It contains no secret. */
export function keepPending(login: PendingLogin): void {
  tabStorage.set(KEY, JSON.stringify(login));
}

/** Return what was kept, once. A tab that has kept nothing gets the defaults. */
export function takePending(): ReturnedLogin {
  const kept = parsed(tabStorage.get(KEY));
  tabStorage.remove(KEY);
  if (!isRecord(kept)) return { target: safeTarget(null), remember: true, isOfThisTab: false };
  return { target: safeTarget(String(kept.target)), remember: kept.remember !== false, isOfThisTab: true };
}

function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}
