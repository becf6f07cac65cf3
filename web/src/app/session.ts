/** The login of this page. Tokens are kept in memory, never in storage that scripts of another page could read. */
import { computed, signal } from "@preact/signals";
import { urlPrefix } from "./prefix.ts";

const accessToken = signal<string | null>(null);
const refreshToken = signal<string | null>(null);

export const session = {
  accessToken,
  isLoggedIn: computed(() => accessToken.value !== null),

  /** Start the session with the tokens of a login. An API token has no refresh token. */
  begin(tokens: { access: string; refresh?: string }): void {
    accessToken.value = tokens.access;
    refreshToken.value = tokens.refresh ?? null;
  },

  /** Replace the access token. Returns false and ends the session if the server refuses. */
  async renew(): Promise<boolean> {
    const refresh = refreshToken.value;
    const response = refresh === null ? null : await post("refresh", { refresh });
    if (response?.ok) {
      const { access } = (await response.json()) as { access: string };
      accessToken.value = access;
      return true;
    }
    accessToken.value = null;
    refreshToken.value = null;
    return false;
  },

  /** Log out: the tokens are revoked on the server, and the page forgets them also if that fails. */
  async end(): Promise<void> {
    const token = refreshToken.value ?? accessToken.value;
    accessToken.value = null;
    refreshToken.value = null;
    if (token !== null) await post("revoke", { token }).catch(() => null);
  },
};

function post(call: string, body: Record<string, string>): Promise<Response> {
  return fetch(`${urlPrefix}/api/v1/token/${call}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}
