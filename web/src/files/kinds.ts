/** What a file is by its name: what its preview shows, and its icon. */
export type Kind = "table" | "image" | "text" | "other";

const TABLES = ["csv", "tsv", "psv", "parquet", "avro", "arrow", "feather", "orc", "xlsx", "xls", "jsonl", "ndjson"];
const IMAGES = ["png", "jpg", "jpeg", "gif", "webp", "avif", "bmp", "ico"];
const TEXTS = [
  "txt",
  "log",
  "md",
  "json",
  "xml",
  "yaml",
  "yml",
  "toml",
  "ini",
  "conf",
  "sql",
  "py",
  "sh",
  "html",
  "svg",
];
const COMPRESSED = ["gz", "bz2", "snappy", "sz"];

/** Return the kind of a file; the extension of compression is left out, so `a.csv.gz` is a table. */
export function kindOf(name: string): Kind {
  const parts = name.toLowerCase().split(".").slice(1);
  const extension = parts.findLast((part) => !COMPRESSED.includes(part)) ?? "";
  if (TABLES.includes(extension)) return "table";
  if (IMAGES.includes(extension)) return "image";
  return TEXTS.includes(extension) || COMPRESSED.includes(parts.at(-1) ?? "") ? "text" : "other";
}
