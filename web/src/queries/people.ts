/** Names of users and groups, as suggestions where the caller may list them. */
import { api, data } from "../api/client.ts";
import { isAdmin } from "../app/config.ts";
import type { Grantee } from "./documents.ts";

const MOST = 20;

/** Return users and groups whose name contains the text. Only administrators may list them; for others it is empty. */
export async function suggestions(text: string, signal: AbortSignal): Promise<Grantee[]> {
  if (!isAdmin.value) return [];
  const query = { filter: text, count: MOST };
  const answer = await data(api.GET("/api/v1/iam/users/autocomplete", { params: { query }, signal }));
  const users = answer.users.map(({ username }) => ({ kind: "user" as const, name: username }));
  return [...users, ...answer.groups.map(({ name }) => ({ kind: "group" as const, name }))];
}
