// The main job by the generated types and openapi-fetch: statements, failures, pages, files, events, an import, an
// export, a shared result, a document, a schedule.
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
const textOf = (bytes: ArrayBuffer): string => Buffer.from(bytes).toString("base64");
const formWith = (fields: Record<string, string>, name: string): FormData => {
  const form = new FormData();
  for (const [field, value] of Object.entries(fields)) form.append(field, value);
  form.append("file", new Blob([content], { type: "text/csv" }), name);
  return form;
};

const stranger = createClient<paths>({ baseUrl });
const wrong = await stranger.POST("/api/v1/token/auth", { body: { username, password: "no" } });
if (wrong.response.status !== 401) throw new Error("a wrong password was taken");
const login: Schemas["LogInRequest"] = { username, password };
const { access } = must(await stranger.POST("/api/v1/token/auth", { body: login }));

const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${access}` } });
const configuration: Schemas["ClientConfiguration"] = must(await client.POST("/api/v1/get_config", {}));

// A statement, its page, its log.
const duckdb = { path: { dialect: "duckdb" } };
const started = must(await client.POST("/api/v1/editor/execute/{dialect}", { params: duckdb, body: { statement } }));
if (started.status !== 0) throw new Error(started.message);
const operationId = started.history_uuid;
const ended = async (operationId: string): Promise<Schemas["QueryStatus"]> => {
  for (;;) {
    const answer = must(await client.POST("/api/v1/editor/check_status", { body: { operationId, wait: 10 } }));
    const { status } = answer.query_status;
    if (status !== "waiting" && status !== "running") return answer.query_status;
  }
};
const pageOf = async (operationId: string): Promise<Schemas["ResultPage"]> => {
  const answer = must(await client.POST("/api/v1/editor/fetch_result_data", { body: { operationId, rows: 10 } }));
  if (answer.status !== 0) throw new Error(answer.message);
  return answer.result;
};
const { status: state, expires_at } = await ended(operationId);
const fetched = await pageOf(operationId);
const log = must(await client.POST("/api/v1/editor/get_logs", { body: { operationId } }));
const unknown = await client.POST("/api/v1/editor/check_status", { body: { operationId: "unknown" } });
const history = must(await client.GET("/api/v1/editor/get_history", { params: { query: { doc_text: "blue pen" } } }));

// The event stream, line by line.
const followed = must(
  await client.GET("/api/v1/editor/events/{operation_id}", {
    params: { path: { operation_id: operationId } },
    parseAs: "stream",
  }),
);
const reader = (followed as ReadableStream<Uint8Array>).getReader();
const decoder = new TextDecoder();
let stream = "";
for (let part = await reader.read(); !part.done; part = await reader.read()) {
  stream += decoder.decode(part.value, { stream: true });
}
const events = [...stream.matchAll(/^event: (\w+)$/gm)].map((match) => match[1]);

const downloaded = async (format: "csv" | "parquet"): Promise<string> => {
  const params = { path: { operation_id: operationId }, query: { format } };
  const options = { params, parseAs: "arrayBuffer" } as const;
  return textOf(must(await client.GET("/api/v1/editor/download/{operation_id}", options)));
};

// Failures.
const bad = { statement: "SELECT * FROM no_such_table", wait: 30 };
const failed = must(await client.POST("/api/v1/editor/execute/{dialect}", { params: duckdb, body: bad }));
if (failed.status === 0 || !("history_uuid" in failed)) throw new Error("a statement on no table went well");
const failure: Schemas["StatementFailure"] = failed;
const again = { body: { operationId: failure.history_uuid } };
const failedStatus = must(await client.POST("/api/v1/editor/check_status", again));
const failedFetch = must(await client.POST("/api/v1/editor/fetch_result_data", again));
if (failedStatus.status === 0 || failedFetch.status === 0) throw new Error("a failed statement went well");
const refused = await client.GET("/api/v1/editor/download/{operation_id}", {
  params: { path: { operation_id: failure.history_uuid } },
});
const noDialect = await client.POST("/api/v1/editor/execute/{dialect}", {
  params: { path: { dialect: "no-such-dialect" } },
  body: bad,
});
const codeOf = (error: object | undefined): unknown => (error && "code" in error ? error.code : undefined);

// From a file to a table.
const uploaded = must(
  await client.POST("/api/v1/importer/upload/file", {
    body: { file: "" },
    bodySerializer: () => formWith({}, "pens.csv"),
  }),
);
const file_path = uploaded.file_path;
const guessed = must(
  await client.GET("/api/v1/importer/file/guess_metadata", { params: { query: { file_path, import_type: "local" } } }),
);
if (!("field_separator" in guessed)) throw new Error("no delimited text");
const field_separator = guessed.field_separator;
const query = { file_path, import_type: "local", file_type: "csv", sql_dialect: "hive", has_header: true } as const;
const preview = must(
  await client.GET("/api/v1/importer/file/preview", { params: { query: { ...query, field_separator } } }),
);

// A file of a store, there and back.
const systems = must(await client.GET("/api/v1/storage/filesystems", {}));
const home = systems[0]?.user_home_directory ?? "";
const sent = must(
  await client.POST("/api/v1/storage/upload/file", {
    body: { dest: home },
    bodySerializer: () => formWith({ dest: home, overwrite: "true" }, "pens-typescript.csv"),
  }),
);
const back = must(
  await client.GET("/api/v1/storage/download", { params: { query: { path: sent.path } }, parseAs: "arrayBuffer" }),
);
const listing = must(await client.GET("/api/v1/storage/list", { params: { query: { path: home } } }));

// An export, and a result for others.
const path = `${home.replace(/\/$/, "")}/exported-typescript.csv`;
const exporting = must(
  await client.POST("/api/v1/editor/export_result", { body: { operationId, path, if_exists: "replace" } }),
);
const exportStatus = await ended(exporting.history_uuid);
const exportPage = await pageOf(exporting.history_uuid);
const exported = must(
  await client.GET("/api/v1/storage/download", { params: { query: { path } }, parseAs: "arrayBuffer" }),
);
const exists = await client.POST("/api/v1/editor/export_result", { body: { operationId, path } });
const ofOperation = { params: { path: { operation_id: operationId } } };
const shared = must(
  await client.POST("/api/v1/editor/share_result", { body: { operationId, groups: ["default"], title: "Pens" } }),
);
if (shared.status !== 0) throw new Error(shared.message);
const shares = must(await client.GET("/api/v1/editor/shares/{operation_id}", ofOperation));
const opened = must(await client.GET("/api/v1/editor/results/{operation_id}", ofOperation));
if (opened.status !== 0) throw new Error(opened.message);
const revoked = must(await client.POST("/api/v1/editor/revoke_share", { body: { operationId } }));
const received = must(await client.GET("/api/v1/editor/shared_with_me", {}));

// A document, and its schedule.
const saved = must(
  await client.POST("/api/v1/documents/save", {
    body: {
      document: {
        name: "Pens",
        statement: "SELECT :n AS n",
        connector: "duckdb",
        parameters: [{ name: "n", type: "bigint", default: 7 }],
      },
    },
  }),
);
const { uuid, version } = saved.document;
const stale = await client.POST("/api/v1/documents/save", { body: { document: { uuid, version: 9, name: "Pencils" } } });
const granted = must(
  await client.POST("/api/v1/documents/share", {
    body: { uuid, grants: [{ group: "default", permission: "run" }] },
  }),
);
const results: unknown[] = [];
for (const parameters of [{}, { n: 8 }]) {
  const running = must(await client.POST("/api/v1/editor/execute", { body: { document: uuid, parameters } }));
  if (running.status !== 0) throw new Error(running.message);
  await ended(running.history_uuid);
  results.push(...(await pageOf(running.history_uuid)).data);
}
const documents = must(await client.GET("/api/v1/documents", { params: { query: { text: "pens" } } }));
const made = must(
  await client.POST("/api/v1/taskserver/schedules/new", {
    body: {
      schedule: {
        name: "nightly pens",
        kind: "statement",
        document: uuid,
        into: { path: "file:///pens-{date}.csv" },
        cron: "30 2 * * *",
        timezone: "Europe/Berlin",
      },
    },
  }),
);
const { id } = made.schedule;
const changed = must(
  await client.POST("/api/v1/taskserver/schedules/update", {
    body: { schedule: { id, version: made.schedule.version, enabled: false } },
  }),
);
const ofSchedule = { params: { path: { id: String(id) } } };
const schedule = must(await client.GET("/api/v1/taskserver/schedules/{id}", ofSchedule)).schedule;
const schedules = must(await client.GET("/api/v1/taskserver/schedules", {}));
const runs = must(await client.GET("/api/v1/taskserver/schedules/{id}/runs", ofSchedule));
const unscheduled = must(await client.POST("/api/v1/taskserver/schedules/delete", { body: { schedule: { id } } }));
const deleted = must(await client.POST("/api/v1/documents/delete", { body: { uuid, skip_trash: true } }));

console.log(
  JSON.stringify({
    interpreters: configuration.app_config.editor.interpreters.map((one) => one.type),
    state,
    expires_later: expires_at !== null && new Date(expires_at) > new Date(),
    columns: fetched.meta.map((column) => column.name),
    column_types: fetched.meta.map((column) => column.type),
    rows: fetched.data,
    has_log: log.logs !== "",
    unknown: codeOf(unknown.error),
    history: history.history.map((entry) => entry.uuid === operationId),
    events,
    csv: await downloaded("csv"),
    parquet: await downloaded("parquet"),
    failed: [failure.status, failure.code, failure.query_status.status, failure.message.includes("no_such_table")],
    followed: [failedStatus.code, failedFetch.code],
    refused: codeOf(refused.error),
    no_dialect: codeOf(noDialect.error),
    types: Object.fromEntries(preview.columns.map((column) => [column.name, column.type])),
    preview: preview.preview_data,
    stored: textOf(back),
    is_listed: listing.files.some((entry) => entry.path === sent.path),
    export: [exportStatus.status, exportPage.data[0]?.[0], exportPage.meta.map((column) => column.name)],
    exported: textOf(exported),
    exists: codeOf(exists.error),
    shared: [shared.changed, shares.shares.map((one) => one.group), revoked.changed, received.count],
    opened: [opened.query_status.status, opened.meta.map((column) => column.name)],
    document: [version, documents.documents.map((entry) => entry.uuid === uuid), results],
    stale: codeOf(stale.error),
    granted: granted.document.grants.map((one) => [one.group, one.permission]),
    deleted: deleted.uuid === uuid,
    schedule: [made.schedule.kind, made.schedule.next_run !== null, schedule.version, schedule.enabled],
    schedules: [changed.schedule.next_run, schedules.count, runs.count],
    unscheduled: unscheduled.id === id,
  }),
);
