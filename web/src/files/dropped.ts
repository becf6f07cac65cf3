/** Files that are dropped on a directory, with the folders that hold them. */
import { ApiError } from "../api/errors.ts";
import { createDirectory } from "./changes.ts";
import { join } from "./paths.ts";

interface FileGroup {
  directory: string;
  files: readonly File[];
}

/** Return the dropped files by their directory. Folders are created in the store. Throws ApiError, DOMException. */
export async function droppedFiles(transfer: DataTransfer, directory: string): Promise<readonly FileGroup[]> {
  // The items are valid only until the event has ended, so all are read before the first wait.
  const entries = [...transfer.items].flatMap((item) => item.webkitGetAsEntry() ?? []);
  if (entries.length === 0) return [{ directory, files: [...transfer.files] }];
  return await groupsOf(entries, directory);
}

async function groupsOf(entries: readonly FileSystemEntry[], directory: string): Promise<FileGroup[]> {
  const files = await Promise.all(entries.filter(isFile).map(fileOf));
  const groups: FileGroup[] = files.length === 0 ? [] : [{ directory, files }];
  for (const folder of entries.filter(isFolder)) {
    const target = join(directory, folder.name);
    await makeDirectory(directory, folder.name);
    groups.push(...(await groupsOf(await contentOf(folder), target)));
  }
  return groups;
}

async function makeDirectory(parent: string, name: string): Promise<void> {
  try {
    await createDirectory(parent, name);
  } catch (caught) {
    if (!(caught instanceof ApiError) || caught.code !== "already_exists") throw caught;
  }
}

function isFile(entry: FileSystemEntry): entry is FileSystemFileEntry {
  return entry.isFile;
}

function isFolder(entry: FileSystemEntry): entry is FileSystemDirectoryEntry {
  return entry.isDirectory;
}

function fileOf(entry: FileSystemFileEntry): Promise<File> {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

/** Return the entries of a folder; the browser returns at most 100 for each call. */
async function contentOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const entries: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return entries;
    entries.push(...some);
  }
}
