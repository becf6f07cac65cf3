/** Which file is imported, and how it is read (Contract importer 2, 4, 5, 7.1). Pure values; `server.ts` sends them. */
import type { Schemas } from "../api/client.ts";
import type { paths } from "../api/schema.d.ts";

type PreviewQuery = paths["/api/v1/importer/file/preview"]["get"]["parameters"]["query"];
export type Metadata = Schemas["DelimitedMetadata"] | Schemas["ExcelMetadata"] | Schemas["RecordsMetadata"];
export type Preview = Schemas["Preview"];
export type PreviewColumn = Schemas["PreviewColumn"];
type FileType = Preview["type"];
type Encoding = NonNullable<PreviewQuery["encoding"]>;
type NumberFormat = NonNullable<PreviewQuery["number_format"]>;

/** A file that the importer can read: an upload (`local`), or a path in a store (`remote`). */
export interface Source {
  importType: "local" | "remote";
  /** The reference of the upload, or the path. */
  path: string;
  /** The name without folders, as it is shown. */
  name: string;
  sizeBytes: number | null;
}

/** How a file is read. An empty text means that the server detects the value. */
export interface Reading {
  fileType: FileType;
  sheet: string;
  separator: string;
  quote: string;
  recordSeparator: string;
  encoding: string;
  /** null: detected. */
  hasHeader: boolean | null;
  skipRows: string;
  comment: string;
  escape: string;
  dateFormat: string;
  numberFormat: string;
  /** Words with commas between them. */
  nullWords: string;
}

const ENCODINGS = [
  "utf-8",
  "utf-8-sig",
  "utf-16",
  "utf-16-le",
  "utf-16-be",
  "ascii",
  "iso-8859-1",
  "iso-8859-2",
  "iso-8859-15",
  "windows-1250",
  "windows-1251",
  "windows-1252",
  "windows-1253",
  "windows-1254",
  "windows-1255",
  "windows-1256",
  "windows-1257",
  "windows-1258",
  "cp874",
  "cp866",
  "mac-roman",
  "shift_jis",
  "cp932",
  "euc-jp",
  "euc-kr",
  "cp949",
  "gbk",
  "gb18030",
  "big5",
  "big5-hkscs",
  "koi8-r",
  "koi8-u",
] as const satisfies readonly Encoding[];

const NUMBER_FORMATS = [
  "1234.5",
  "1234,5",
  "1,234.5",
  "1.234,5",
  "1 234.5",
  "1 234,5",
  "1'234.5",
] as const satisfies readonly NumberFormat[];

export const ENCODING_OPTIONS = options(ENCODINGS);
export const NUMBER_FORMAT_OPTIONS = [{ value: "", label: "Detected" }, ...options(NUMBER_FORMATS)];
export const SEPARATOR_OPTIONS = [
  { value: ",", label: "Comma  ," },
  { value: "\t", label: "Tab" },
  { value: ";", label: "Semicolon  ;" },
  { value: "|", label: "Pipe  |" },
  { value: " ", label: "Space" },
  { value: ":", label: "Colon  :" },
  { value: "^", label: "Caret  ^" },
  { value: "~", label: "Tilde  ~" },
  { value: "\u0001", label: "U+0001 (Hive)" },
] as const;
/** `\0` switches quoting off (Contract importer 7.2). */
export const QUOTE_OPTIONS = [
  { value: '"', label: 'Double  "' },
  { value: "'", label: "Single  '" },
  { value: "\\0", label: "None" },
] as const;

const FILE_TYPES: Readonly<Record<FileType, string>> = {
  csv: "Delimited text",
  tsv: "Delimited text",
  delimiter_format: "Delimited text",
  excel: "Workbook",
  parquet: "Parquet",
  ndjson: "JSON Lines",
  avro: "Avro",
  arrow: "Arrow",
};

export function isDelimited(type: FileType): boolean {
  return type === "csv" || type === "tsv" || type === "delimiter_format";
}

/** Return whether the file itself has column names and types, so that nothing about its form can be chosen. */
export function hasRecords(type: FileType): boolean {
  return !isDelimited(type) && type !== "excel";
}

export function fileTypeLabel(type: FileType): string {
  return FILE_TYPES[type];
}

/** Return how a file is read at first: as it was detected. */
export function readingOf(metadata: Metadata): Reading {
  const reading: Reading = {
    fileType: metadata.type,
    sheet: "sheet_names" in metadata ? (metadata.sheet_names[0] ?? "") : "",
    separator: "",
    quote: "",
    recordSeparator: "",
    encoding: "",
    hasHeader: null,
    skipRows: "",
    comment: "",
    escape: "",
    dateFormat: "",
    numberFormat: "",
    nullWords: "",
  };
  if (!("field_separator" in metadata)) return reading;
  return {
    ...reading,
    separator: metadata.field_separator,
    quote: metadata.quote_char || "\\0",
    recordSeparator: metadata.record_separator,
    encoding: metadata.encoding,
  };
}

/** Return the reading with another separator; the type of the file follows from it (Contract importer 4). */
export function withSeparator(reading: Reading, separator: string): Reading {
  const isTab = separator === "\t" || separator === "\\t";
  return { ...reading, separator, fileType: separator === "," ? "csv" : isTab ? "tsv" : "delimiter_format" };
}

type ReadingQuery = Omit<PreviewQuery, "connector" | "sql_dialect" | "null_words"> & {
  null_words?: string[];
};

/** Return the fields that all calls about the file share. Values that are detected are absent. */
export function readingQuery(source: Source, reading: Reading): ReadingQuery {
  const query: ReadingQuery = {
    file_path: source.path,
    import_type: source.importType,
    file_type: reading.fileType,
  };
  if (hasRecords(reading.fileType)) return query;
  if (reading.hasHeader !== null) query.has_header = reading.hasHeader;
  if (/^\d+$/.test(reading.skipRows)) query.skip_rows = Number(reading.skipRows);
  if (reading.dateFormat !== "") query.date_format = reading.dateFormat;
  if (isNumberFormat(reading.numberFormat)) query.number_format = reading.numberFormat;
  const words = nullWordsOf(reading.nullWords);
  if (words.length > 0) query.null_words = words;
  if (reading.fileType === "excel") return { ...query, sheet_name: reading.sheet };
  if (reading.separator !== "") query.field_separator = reading.separator;
  if (reading.quote !== "") query.quote_char = reading.quote;
  if (reading.recordSeparator !== "") query.record_separator = reading.recordSeparator;
  if (isEncoding(reading.encoding)) query.encoding = reading.encoding;
  if (reading.comment !== "") query.comment = reading.comment;
  if (reading.escape !== "") query.escape = reading.escape;
  return query;
}

/** Return the words of a text with commas between them. */
export function nullWordsOf(text: string): string[] {
  return text
    .split(",")
    .map((word) => word.trim())
    .filter((word) => word !== "");
}

function isEncoding(name: string): name is Encoding {
  return ENCODINGS.some((one) => one === name);
}

function isNumberFormat(text: string): text is NumberFormat {
  return NUMBER_FORMATS.some((one) => one === text);
}

function options(values: readonly string[]): Array<{ value: string; label: string }> {
  return values.map((value) => ({ value, label: value }));
}
