/** Calls for saved queries (Contract documents). Each throws ApiError. */
import { api, data, type Schemas } from "../api/client.ts";

export type Document = Schemas["Document"];
export type Entry = Schemas["DocumentEntry"];
export type Parameter = Schemas["DocumentParameter"];
export type Version = Schemas["DocumentVersion"];
type VersionEntry = Schemas["DocumentVersionEntry"];
/** `none` revokes. */
export type Permission = Schemas["GrantFields"]["permission"];
export interface Grantee {
  kind: "user" | "group";
  name: string;
}

const PAGE = 1000;
/** As many as a user may have (`documents.max_per_user`). */
const MOST_PAGES = 10;

export interface Filter {
  /** A part of name, description or statement; empty for all. */
  text: string;
  isTrash: boolean;
}

/** Read the list page by page; `onPart` receives what has come so far. */
export async function listDocuments(
  { text, isTrash }: Filter,
  signal: AbortSignal,
  onPart: (entries: readonly Entry[]) => void,
): Promise<Entry[]> {
  const entries: Entry[] = [];
  let after: string | null = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const query = { limit: PAGE, trash: isTrash, ...(text ? { text } : {}), ...(after ? { after } : {}) };
    const answer: Schemas["DocumentListResponse"] = await data(
      api.GET("/api/v1/documents", { params: { query }, signal }),
    );
    entries.push(...answer.documents);
    after = answer.next_after;
    if (after === null) break;
    onPart([...entries]);
  }
  return entries;
}

export async function getDocument(uuid: string, signal?: AbortSignal): Promise<Document> {
  const options = { params: { path: { uuid } }, ...(signal ? { signal } : {}) };
  return (await data(api.GET("/api/v1/documents/{uuid}", options))).document;
}

/** Create a document, or save a new version of it. A folder in `document` moves it. */
export async function saveDocument(document: Schemas["DocumentFields"]): Promise<Document> {
  return (await data(api.POST("/api/v1/documents/save", { body: { document } }))).document;
}

export async function moveDocument(uuid: string, folder: string): Promise<void> {
  await data(api.POST("/api/v1/documents/move", { body: { uuid, folder } }));
}

/** Move a document to the trash, or delete it for ever. */
export async function deleteDocument(uuid: string, isForEver: boolean): Promise<void> {
  await data(api.POST("/api/v1/documents/delete", { body: { uuid, skip_trash: isForEver } }));
}

export async function restoreDocument(uuid: string): Promise<void> {
  await data(api.POST("/api/v1/documents/restore", { body: { uuid } }));
}

export async function listVersions(uuid: string, signal: AbortSignal): Promise<VersionEntry[]> {
  const options = { params: { path: { uuid } }, signal };
  return (await data(api.GET("/api/v1/documents/{uuid}/versions", options))).versions;
}

export async function getVersion(uuid: string, version: number, signal: AbortSignal): Promise<Version> {
  const options = { params: { path: { uuid, version: String(version) } }, signal };
  return (await data(api.GET("/api/v1/documents/{uuid}/versions/{version}", options))).version;
}

/** Make the content of a former version the newest one. `current` is the version that the user has seen. */
export async function restoreVersion(uuid: string, restore: number, current: number): Promise<Document> {
  const body = { uuid, restore, version: current };
  return (await data(api.POST("/api/v1/documents/restore_version", { body }))).document;
}

/** Set one grant, or revoke it. */
export async function grantDocument(uuid: string, to: Grantee, permission: Permission): Promise<Document> {
  const grants = [{ [to.kind]: to.name, permission }];
  return (await data(api.POST("/api/v1/documents/share", { body: { uuid, grants } }))).document;
}

/** Return the folders of documents with those above them, `/` first. */
export function foldersOf(entries: readonly Pick<Entry, "folder">[]): string[] {
  const folders = new Set(["/"]);
  for (const { folder } of entries) {
    const names = folder.split("/").filter((name) => name !== "");
    names.forEach((_, depth) => {
      folders.add(`/${names.slice(0, depth + 1).join("/")}`);
    });
  }
  return [...folders].sort((one, other) => one.localeCompare(other));
}

/** Return whether a folder is `folder` or within it. */
export function isWithin(folder: string, ancestor: string): boolean {
  return ancestor === "/" || folder === ancestor || folder.startsWith(`${ancestor}/`);
}
