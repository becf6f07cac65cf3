/** Paths of stores, in the normal form of the server (Contract storage 2.2): `/user/ana`, `s3a://bucket/key`, `file:///a`. */
import { at } from "../app/prefix.ts";

interface Crumb {
  path: string;
  label: string;
}

const WITH_SCHEME = /^([a-z][a-z0-9+.-]*):\/\/(\/?)/i;

/** Return the root of the store of a path: `/`, `s3a://` or `file:///`. */
export function rootOf(path: string): string {
  return WITH_SCHEME.exec(path)?.[0] ?? "/";
}

/** Return the names below the root, from the top. */
function segmentsOf(path: string): readonly string[] {
  return path
    .slice(rootOf(path).length)
    .split("/")
    .filter((segment) => segment !== "");
}

export function isRoot(path: string): boolean {
  return segmentsOf(path).length === 0;
}

/** Return the path of an entry of a directory. */
export function join(directory: string, name: string): string {
  return rootOf(directory) + [...segmentsOf(directory), name].join("/");
}

/** Return the directory that holds the entry; a root is its own parent. */
export function parentOf(path: string): string {
  return rootOf(path) + segmentsOf(path).slice(0, -1).join("/");
}

/** Return the last name of a path; of a root, the root. */
export function nameOf(path: string): string {
  return segmentsOf(path).at(-1) ?? rootOf(path);
}

/** Return each directory from the root to the path, which is the last one. */
export function crumbsOf(path: string): readonly Crumb[] {
  const root = rootOf(path);
  const names = segmentsOf(path);
  const below = names.map((label, index) => ({ path: root + names.slice(0, index + 1).join("/"), label }));
  return [{ path: root, label: root }, ...below];
}

/** Return whether a path is the directory or lies below it. */
export function isWithin(path: string, directory: string): boolean {
  const [inner, outer] = [segmentsOf(path), segmentsOf(directory)];
  return rootOf(path) === rootOf(directory) && outer.every((segment, index) => segment === inner[index]);
}

/** Return whether a path lies in a trash, or is one. */
export function isInTrash(path: string): boolean {
  return segmentsOf(path).includes(".Trash");
}

/** Return whether an entry can go back to its original path: it lies below `Current` or a checkpoint of the trash. */
export function isRestorable(path: string): boolean {
  const names = segmentsOf(path);
  const checkpoint = names.findIndex((name, index) => names.indexOf(".Trash") < index && /^(Current|\d+)$/.test(name));
  return isInTrash(path) && checkpoint > 0 && checkpoint < names.length - 1;
}

/** Return the address of the view of a path. Slashes and colons stay readable. */
export function addressOf(path: string, others: Record<string, string> = {}): string {
  const parameters = Object.entries({ path, ...others }).filter(([, value]) => value !== "");
  return `${at("/files")}?${parameters.map(([name, value]) => `${name}=${encoded(value)}`).join("&")}`;
}

function encoded(value: string): string {
  return encodeURIComponent(value).replaceAll("%2F", "/").replaceAll("%3A", ":");
}
