/** What the server's own tokens say about themselves (Contract platform 3.3). The server checks them, not the page. */
import { isRecord } from "../api/errors.ts";

interface Claims {
  userId: number;
  /** Seconds from the issue of the token to its expiry. */
  lifeS: number;
}

/** Return the claims of an access token; null for API tokens and tokens of other issuers. */
export function claimsOf(token: string): Claims | null {
  const body = token.split(".")[1];
  if (body === undefined) return null;
  try {
    const claims: unknown = JSON.parse(atob(body.replaceAll("-", "+").replaceAll("_", "/")));
    if (!isRecord(claims)) return null;
    const { user_id: userId, iat, exp } = claims;
    if (typeof userId !== "number" || typeof iat !== "number" || typeof exp !== "number") return null;
    return { userId, lifeS: exp - iat };
  } catch {
    return null;
  }
}
