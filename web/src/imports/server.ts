/** The importer calls that look into a file and start an import (Contract importer 4 to 7, 13). Reject with ApiError. */
import { api, CALL_TIMEOUT_MS, data, type Schemas } from "../api/client.ts";
import { within } from "../api/timeouts.ts";
import { type Metadata, type Preview, type Reading, readingQuery, type Source } from "./reading.ts";

/** A file as it is read with some reading: whether its first row is the header, and its columns and first rows. */
export interface Inspection {
  hasHeader: boolean;
  preview: Preview;
}

export async function guessMetadata(source: Source, signal: AbortSignal): Promise<Metadata> {
  const query = { file_path: source.path, import_type: source.importType };
  return await data(api.GET("/api/v1/importer/file/guess_metadata", { params: { query }, signal: limited(signal) }));
}

/**
 * Return the preview with the types of the connector's dialect, or those of duckdb without one. A header that the reading
 * leaves open is detected.
 */
export async function inspect(
  source: Source,
  reading: Reading,
  connector: string | null,
  signal: AbortSignal,
): Promise<Inspection> {
  const { null_words, ...query } = readingQuery(source, reading);
  let hasHeader = reading.hasHeader;
  if (hasHeader === null) {
    const call = api.GET("/api/v1/importer/file/guess_header", { params: { query }, signal: limited(signal) });
    hasHeader = (await data(call)).has_header;
  }
  const words = null_words === undefined ? {} : { null_words: JSON.stringify(null_words) };
  const target = connector === null ? { sql_dialect: "duckdb" as const } : { connector };
  const params = { query: { ...query, ...words, has_header: hasHeader, ...target } };
  const preview = await data(api.GET("/api/v1/importer/file/preview", { params, signal: limited(signal) }));
  return { hasHeader, preview };
}

/** Return the names of the types of a connector's dialect, sorted. */
export async function sqlTypes(connector: string, signal: AbortSignal): Promise<string[]> {
  const query = { connector };
  return await data(api.GET("/api/v1/importer/sql_type_mapping", { params: { query }, signal: limited(signal) }));
}

/** Start an import, and return its operation. A repeated call with the same key starts no second one. */
export async function createTable(
  body: Schemas["CreateTableRequest"],
  key: string,
): Promise<Schemas["CreateTableResponse"]> {
  const header = { "Idempotency-Key": key };
  const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
  return await data(api.POST("/api/v1/importer/create_table", { body, params: { header }, signal }));
}

/** Run a statement without waiting for it, and return its operation. */
export async function execute(connector: string, statement: string, database: string): Promise<string> {
  const body = { statement, ...(database === "" ? {} : { database }) };
  const params = { path: { dialect: connector } };
  const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
  return (await data(api.POST("/api/v1/editor/execute/{dialect}", { params, body, signal }))).history_uuid;
}

function limited(signal: AbortSignal): AbortSignal {
  // A workbook is read as a whole, for which the server allows 60 s.
  return within(signal, 2 * CALL_TIMEOUT_MS);
}
