/** The changes that the dialogs offer, as calls whose progress is shown in the list of transfers. */
import { api, data } from "../api/client.ts";
import { countText } from "../ui/texts.ts";
import type { Entry } from "./listing.ts";
import { perform, WAIT_S } from "./operations.ts";

export type Entries = readonly Pick<Entry, "path" | "name" | "type">[];

export function subjectOf(entries: Entries): string {
  return entries.length === 1 ? `“${entries[0]?.name}”` : countText(entries.length, "entry", "entries");
}

function pathsOf(entries: Entries): string[] {
  return entries.map((entry) => entry.path);
}

export function move(entries: Entries, directory: string): Promise<boolean> {
  const body = { src_path: pathsOf(entries), dest_path: directory, wait: WAIT_S };
  const start = () => data(api.POST("/api/v1/storage/move/bulk", { body }));
  return perform(`Moving ${subjectOf(entries)}`, `Moved ${subjectOf(entries)} to ${directory}`, start);
}

export function copy(entries: Entries, directory: string): Promise<boolean> {
  const body = { src_path: pathsOf(entries), dest_path: directory, wait: WAIT_S };
  const start = () => data(api.POST("/api/v1/storage/copy/bulk", { body }));
  return perform(`Copying ${subjectOf(entries)}`, `Copied ${subjectOf(entries)} to ${directory}`, start);
}

export function rename(entry: Entry, name: string): Promise<boolean> {
  const body = { src_path: entry.path, dest_path: name, wait: WAIT_S };
  const start = () => data(api.POST("/api/v1/storage/rename", { body }));
  return perform(`Renaming “${entry.name}”`, `Renamed “${entry.name}” to “${name}”`, start);
}

/** Delete entries: permanently, or as the store does it by default. */
export function discard(entries: Entries, isPermanent: boolean): Promise<boolean> {
  const body = { path: pathsOf(entries), wait: WAIT_S, ...(isPermanent ? { skip_trash: true } : {}) };
  const start = () => data(api.POST("/api/v1/storage/delete/bulk", { body }));
  return perform(`Deleting ${subjectOf(entries)}`, `Deleted ${subjectOf(entries)}`, start);
}

export function restore(entries: Entries): Promise<boolean> {
  const start = () => data(api.POST("/api/v1/storage/trash/restore/bulk", { body: { path: pathsOf(entries) } }));
  return perform(`Restoring ${subjectOf(entries)}`, `Restored ${subjectOf(entries)}`, start);
}

export function emptyTrash(path: string): Promise<boolean> {
  const start = () => data(api.POST("/api/v1/storage/trash/purge", { body: { path } }));
  return perform("Emptying the trash", "Emptied the trash", start);
}

export function changeMode(entries: Entries, mode: string, recursive: boolean): Promise<boolean> {
  const body = { path: pathsOf(entries), mode, recursive };
  const start = () => data(api.POST("/api/v1/storage/chmod/bulk", { body }));
  return perform(`Changing the permissions of ${subjectOf(entries)}`, "Changed the permissions", start);
}

/** Change owner and group; an empty one stays as it is. */
export function changeOwner(entries: Entries, user: string, group: string, recursive: boolean): Promise<boolean> {
  const owners = { ...(user === "" ? {} : { user }), ...(group === "" ? {} : { group }) };
  const body = { path: pathsOf(entries), ...owners, recursive };
  const start = () => data(api.POST("/api/v1/storage/chown/bulk", { body }));
  return perform(`Changing the owner of ${subjectOf(entries)}`, "Changed the owner", start);
}

export function changeReplication(entry: Entry, factor: number): Promise<boolean> {
  const body = { path: entry.path, replication_factor: factor };
  const start = () => data(api.POST("/api/v1/storage/replication", { body }));
  return perform(`Changing the replication of “${entry.name}”`, "Changed the replication", start);
}

/** Create a directory. Throws ApiError, so that the dialog can show it beside the name. */
export async function createDirectory(parent: string, name: string): Promise<void> {
  await data(api.POST("/api/v1/storage/create/directory", { body: { path: parent, name } }));
}
