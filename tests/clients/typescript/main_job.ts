// The main job by the generated types and openapi-fetch: log in, run a statement, fetch, look back, import, list files.
// Arguments: base URL, user, password. Prints what it found as JSON.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

const statement = "SELECT 1 AS id, 'blue pen' AS name";
const content = "id,name\n1,blue pen\n2,red pen\n";

const [baseUrl = "", username = "", password = ""] = process.argv.slice(2);

const must = <T>(answer: { data?: T; error?: unknown; response: Response }): T => {
  if (answer.data === undefined) {
    throw new Error(`${answer.response.url} ${answer.response.status}: ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
};

const stranger = createClient<paths>({ baseUrl });
const wrong = await stranger.POST("/api/v1/token/auth", { body: { username, password: "no" } });
if (wrong.response.status !== 401) throw new Error("a wrong password was taken");
const { access } = must(await stranger.POST("/api/v1/token/auth", { body: { username, password } }));

const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${access}` } });
const configuration: Schemas["ClientConfiguration"] = must(await client.POST("/api/v1/get_config", {}));

const started = must(
  await client.POST("/api/v1/editor/execute/{dialect}", { params: { path: { dialect: "duckdb" } }, body: { statement } }),
);
if (!("history_uuid" in started)) throw new Error(started.message);
const operationId = started.history_uuid;
let state = "waiting";
while (state === "waiting" || state === "running") {
  const told = must(await client.POST("/api/v1/editor/check_status", { body: { operationId, wait: 10 } }));
  state = told.query_status.status;
}
const fetched = must(await client.POST("/api/v1/editor/fetch_result_data", { body: { operationId, rows: 10 } }));
if (!("result" in fetched)) throw new Error(fetched.message);
const log = must(await client.POST("/api/v1/editor/get_logs", { body: { operationId } }));
const unknown = await client.POST("/api/v1/editor/check_status", { body: { operationId: "unknown" } });
const history = must(await client.GET("/api/v1/editor/get_history", { params: { query: { doc_text: "blue pen" } } }));

const form = new FormData();
form.append("file", new Blob([content], { type: "text/csv" }), "pens.csv");
const uploaded = must(
  await client.POST("/api/v1/importer/upload/file", { body: { file: "" }, bodySerializer: () => form }),
);
const file_path = uploaded.file_path;
const guessed = must(
  await client.GET("/api/v1/importer/file/guess_metadata", { params: { query: { file_path, import_type: "local" } } }),
);
if (guessed.type === "excel" || !("field_separator" in guessed)) throw new Error("no text");
const field_separator = guessed.field_separator;
const query = { file_path, import_type: "local", file_type: "csv", sql_dialect: "hive", has_header: true } as const;
const preview = must(
  await client.GET("/api/v1/importer/file/preview", { params: { query: { ...query, field_separator } } }),
);

const systems = must(await client.GET("/api/v1/storage/filesystems", {}));
const home = systems[0]?.user_home_directory ?? "";
const listing = must(await client.GET("/api/v1/storage/list", { params: { query: { path: home } } }));

console.log(
  JSON.stringify({
    interpreters: configuration.app_config.editor.interpreters.map((one) => one.type),
    state,
    columns: fetched.result.meta.map((column) => column.name),
    rows: fetched.result.data,
    has_log: log.logs !== "",
    unknown: unknown.error && "code" in unknown.error ? unknown.error.code : "",
    history: history.history.map((entry) => entry.uuid === operationId),
    types: Object.fromEntries(preview.columns.map((column) => [column.name, column.type])),
    preview: preview.preview_data,
    files: listing.page.total_count,
  }),
);
