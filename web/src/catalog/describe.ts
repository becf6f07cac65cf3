/** Calls for the page of a table: description, sample, statistics (Contract editor 10.3 to 10.5). */
import { api, CALL_TIMEOUT_MS, data, type Schemas } from "../api/client.ts";
import { within } from "../api/timeouts.ts";
import { Semaphore } from "./semaphore.ts";

export type TableDescription = Schemas["TableDescription"];
export type Sample = Schemas["SampleResponse"];

/** Names a table; `connector` is the id of an interpreter. */
export interface TableName {
  connector: string;
  database: string;
  table: string;
}

/** Browsers open six connections to a server at most; statistics of many columns must leave some of them free. */
const statisticsCalls = new Semaphore(2);

export function describeTable({ connector, database, table }: TableName, refresh: boolean, signal: AbortSignal) {
  return data(
    api.POST("/api/v1/editor/describe/{database}/{table}", {
      params: { path: { database, table } },
      body: { source_type: connector, refresh },
      signal: within(signal),
    }),
  );
}

/** Return at most 100 rows, with numbers of many digits as text. */
export async function sampleRows({ connector, database, table }: TableName, signal: AbortSignal): Promise<Sample> {
  const body = await data(
    api.POST("/api/v1/editor/sample/{database}/{table}", {
      params: { path: { database, table } },
      body: { snippet: { type: connector }, escape: false, big_numbers: "text" },
      signal: within(signal),
    }),
  );
  if ("rows" in body) return body;
  throw new Error("The server started a statement in place of a sample.");
}

/** Return the statistics of a column that the engine has already computed. */
export function columnStatistics({ connector, database, table }: TableName, column: string, signal: AbortSignal) {
  return statisticsCalls.run(signal, () =>
    data(
      api.POST("/api/v1/editor/describe/{database}/{table}/stats/{column}", {
        params: { path: { database, table, column } },
        body: { source_type: connector },
        signal: within(signal),
      }),
    ),
  );
}

/** Start the computation of a table's statistics, and return the id of the operation. */
export async function startAnalysis({ connector, database, table }: TableName): Promise<string> {
  const path = { dialect: connector, database, table };
  const call = { params: { path }, signal: AbortSignal.timeout(CALL_TIMEOUT_MS) };
  return (await data(api.POST("/api/v1/{dialect}/analyze/{database}/{table}", call))).operationId;
}
