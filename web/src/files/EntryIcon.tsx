import { File, FileImage, FileQuestionMark, FileSpreadsheet, FileText, Folder, FolderSymlink } from "lucide-preact";
import { kindOf } from "./kinds.ts";
import type { Entry } from "./listing.ts";

const ICON_PX = 16;
const ICONS = { table: FileSpreadsheet, image: FileImage, text: FileText, other: File } as const;
const BY_TYPE = { dir: Folder, link: FolderSymlink, unknown: FileQuestionMark } as const;

export function EntryIcon({ entry }: { entry: Pick<Entry, "name" | "type"> }) {
  const Icon = entry.type === "file" ? ICONS[kindOf(entry.name)] : BY_TYPE[entry.type];
  return <Icon size={ICON_PX} aria-hidden />;
}
