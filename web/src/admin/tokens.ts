/** API tokens: lists, creation, and the texts of scopes and states (Contract platform 4.4). */
import { api, data, type Schemas } from "../api/client.ts";

export type ApiToken = Schemas["ApiToken"];
export type Scope = ApiToken["scopes"][number];

export const PAGE_SIZE = 50;

/** Whose tokens are listed: the user's own, those of all users, or those of one. */
export type Owner = { whose: "own" } | { whose: "all" } | { whose: "user"; username: string };

export interface TokenPage {
  tokens: readonly ApiToken[];
  count: number;
}

export const SCOPE_TEXTS: Readonly<Record<Scope, string>> = {
  "query:read": "Read data: statements that change nothing, results, metadata",
  query: "Run all statements; exports, shares, saved queries",
  "files:read": "Read files of stores",
  "files:write": "Change files of stores",
  import: "Import files into tables",
  admin: "Administrate: calls for administrators, and API tokens",
};

export const SCOPES: readonly Scope[] = ["query:read", "query", "files:read", "files:write", "import", "admin"];

export const LIVES: ReadonlyArray<{ value: string; label: string }> = [
  { value: "7", label: "7 days" },
  { value: "30", label: "30 days" },
  { value: "90", label: "90 days" },
  { value: "365", label: "1 year" },
];

export const STATE_TEXTS: Readonly<Record<ApiToken["state"], string>> = {
  active: "Active",
  expired: "Expired",
  revoked: "Revoked",
};

export async function tokenPage(owner: Owner, page: number, signal: AbortSignal): Promise<TokenPage> {
  const whose = owner.whose === "all" ? { all: true } : owner.whose === "user" ? { username: owner.username } : {};
  const query = { page, limit: PAGE_SIZE, ...whose };
  return await data(api.GET("/api/v1/token/api_tokens", { params: { query }, signal }));
}

export interface TokenForm {
  name: string;
  /** Empty for the user's own token. */
  username: string;
  scopes: readonly Scope[];
  /** Empty for all that the user may use. */
  connectors: readonly string[];
  days: string;
}

/** Create a token. Returns its value, which the server does not return again. */
export async function createToken(form: TokenForm): Promise<string> {
  return (await data(api.POST("/api/v1/token/api_tokens/new", { body: bodyOf(form) }))).value;
}

/** Return the fields of the call. A token with the scope `admin` cannot be limited to connectors. */
export function bodyOf(form: TokenForm): Schemas["NewApiTokenRequest"] {
  const isLimited = form.connectors.length > 0 && !form.scopes.includes("admin");
  return {
    name: form.name.trim(),
    scopes: [...form.scopes],
    expires_in_days: Number(form.days),
    ...(form.username.trim() === "" ? {} : { username: form.username.trim() }),
    ...(isLimited ? { connectors: [...form.connectors] } : {}),
  };
}

export async function revokeToken(id: string): Promise<void> {
  await data(api.POST("/api/v1/token/api_tokens/revoke", { body: { id } }));
}
