/** Users and groups: lists, changes, and the texts of rights (Contract platform 6). */
import { api, data, type Schemas } from "../api/client.ts";
import { type Connector, connectors } from "../app/config.ts";

export type UserSummary = Schemas["UserSummary"];
export type Account = Schemas["Account"];
export type Group = Schemas["GroupRights"];
export type GroupList = Schemas["GroupListResponse"];
export type UserChange = Partial<Pick<Account, "first_name" | "last_name" | "email" | "is_admin" | "groups">>;

export const PAGE_SIZE = 50;

export interface UserFilters {
  text: string;
  group: string;
  state: "" | "active" | "disabled" | "service";
}

export const EVERYBODY: UserFilters = { text: "", group: "", state: "" };

const STATE_QUERIES = {
  "": {},
  active: { is_active: true },
  disabled: { is_active: false },
  service: { is_service_account: true },
} as const;

/** A page of the users that match, from page 1, by name. */
export async function userPage(filters: UserFilters, page: number, signal: AbortSignal) {
  const query = {
    page,
    limit: PAGE_SIZE,
    ...(filters.text === "" ? {} : { filter: filters.text }),
    ...(filters.group === "" ? {} : { groups: [filters.group] }),
    ...STATE_QUERIES[filters.state],
  };
  return await data(api.GET("/api/v1/iam/get_users", { params: { query }, signal }));
}

export async function account(username: string, signal: AbortSignal): Promise<Account> {
  const query = { username };
  return (await data(api.GET("/api/v1/iam/users/get", { params: { query }, signal }))).user;
}

export async function createUser(body: Schemas["NewUserRequest"]): Promise<Account> {
  return (await data(api.POST("/api/v1/iam/users/new", { body }))).user;
}

export async function updateUser(body: Schemas["UserChangeRequest"]): Promise<Account> {
  return (await data(api.POST("/api/v1/iam/users/update", { body }))).user;
}

export async function revokeTokens(username: string): Promise<void> {
  await data(api.POST("/api/v1/iam/users/revoke_tokens", { body: { username } }));
}

export async function groupList(signal: AbortSignal): Promise<GroupList> {
  return await data(api.GET("/api/v1/iam/groups", { signal }));
}

export async function createGroup(name: string, rights: readonly string[]): Promise<Group> {
  return (await data(api.POST("/api/v1/iam/groups/new", { body: { name, rights: [...rights] } }))).group;
}

export async function changeRights(name: string, grant: readonly string[], revoke: readonly string[]): Promise<Group> {
  const body = { name, grant: [...grant], revoke: [...revoke] };
  return (await data(api.POST("/api/v1/iam/groups/update", { body }))).group;
}

export async function deleteGroup(name: string): Promise<void> {
  await data(api.POST("/api/v1/iam/groups/delete", { body: { name } }));
}

/** The properties in which the edited user differs from the stored one, so that others stay as they are. */
export function changesOf(before: Account, after: Required<UserChange>): UserChange {
  return {
    ...(after.first_name === before.first_name ? {} : { first_name: after.first_name }),
    ...(after.last_name === before.last_name ? {} : { last_name: after.last_name }),
    ...(after.email === before.email ? {} : { email: after.email }),
    ...(after.is_admin === before.is_admin ? {} : { is_admin: after.is_admin }),
    ...(isSameSet(after.groups, before.groups) ? {} : { groups: after.groups }),
  };
}

/** The entries of `one` that are not in `other`. */
export function without(one: readonly string[], other: readonly string[]): string[] {
  return one.filter((entry) => !other.includes(entry));
}

function isSameSet(one: readonly string[], other: readonly string[]): boolean {
  return without(one, other).length === 0 && without(other, one).length === 0;
}

export function fullName(user: Pick<Account, "first_name" | "last_name">): string {
  return `${user.first_name} ${user.last_name}`.trim();
}

/** Return a time that the server gives without a zone, which is UTC, as one that scripts read as UTC. */
export function utc(time: string): string {
  return time.endsWith("Z") ? time : `${time}Z`;
}

const RIGHT_TEXTS: Readonly<Record<string, string | undefined>> = {
  admin: "Administrator: everything",
  "connector:*": "All data sources",
  download: "Download results and files",
  "filebrowser.abfs_access": "Files in Azure stores",
  "filebrowser.file_access": "Files of the server's local store",
  "filebrowser.ofs_access": "Files in Ozone",
  "filebrowser.s3_access": "Files in S3",
  importer: "Import files into tables",
  metadata: "Search over tables and files",
  "security.impersonate": "Act for other users in stores",
};

type NamedConnector = Pick<Connector, "id" | "displayName">;

const CONNECTOR_RIGHT = "connector:";

/** Return what a right allows, in words. */
export function rightText(right: string, known: readonly NamedConnector[] = connectors.value): string {
  const text = RIGHT_TEXTS[right];
  if (text !== undefined) return text;
  if (!right.startsWith(CONNECTOR_RIGHT)) return right;
  const id = right.slice(CONNECTOR_RIGHT.length);
  const connector = known.find((one) => one.id === id);
  return connector ? `Data source ${connector.displayName}` : `Data source ${id}`;
}

/** All rights that can be granted: the named ones, those on stored connectors, and others that the group has. */
export function rightChoices(
  named: readonly string[],
  chosen: readonly string[],
  known: readonly NamedConnector[] = connectors.value,
): string[] {
  // Connectors of the settings file have names, and no rights of their own.
  const single = known.filter(({ id }) => /^[1-9][0-9]*$/.test(id)).map(({ id }) => `${CONNECTOR_RIGHT}${id}`);
  return [...new Set([...named, ...single, ...chosen])];
}
