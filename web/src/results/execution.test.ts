import { afterEach, expect, test, vi } from "vitest";
import { attachExecution, type Execution, startExecution } from "./execution.ts";
import { problemOf } from "./problem.ts";
import { answers, events, pageOf, serve, statusOf } from "./testing.ts";

const ID = "0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10";
const open: Execution[] = [];

afterEach(() => {
  for (const execution of open.splice(0)) execution.dispose();
  vi.useRealTimers();
});

function start(statement = "SELECT 1"): Execution {
  const execution = startExecution({ connector: "duckdb", statement });
  open.push(execution);
  return execution;
}

function acknowledged(state: "running" | "waiting" | "available", more: object = {}) {
  return Response.json({
    status: 0,
    history_uuid: ID,
    history_id: 1,
    handle: {},
    query_status: statusOf(state),
    ...more,
  });
}

test("a short statement is complete, with its rows, after one call", async () => {
  const calls = serve({
    "editor/execute": answers(acknowledged("available", { result: pageOf(0, [[1]], 1) })),
    "editor/events": answers(events(["end", { status: 0, query_status: statusOf("available", { rows: 1 }) }])),
  });
  const execution = start();
  await vi.waitFor(() => expect(execution.state.value).toBe("available"));
  expect(execution.rows.value?.row(0)).toEqual([1]);
  expect(calls.filter((call) => call.path.endsWith("fetch_result_data"))).toEqual([]);
});

test("a submission without an answer is repeated with the same key", async () => {
  const calls = serve({
    "editor/execute": answers(Response.error(), new Response("", { status: 503 }), acknowledged("available")),
    "editor/events": answers(events(["end", { status: 0, query_status: statusOf("available") }])),
    "editor/fetch_result_data": answers(Response.json({ status: 0, result: pageOf(0, [], 0) })),
  });
  const execution = start();
  await vi.waitFor(() => expect(execution.state.value).toBe("available"), 5000);
  const keys = calls.filter((call) => call.path.includes("execute")).map((call) => call.headers.get("Idempotency-Key"));
  expect(keys).toHaveLength(3);
  expect(new Set(keys).size).toBe(1);
});

test("a refused submission is not repeated", async () => {
  const refusal = { status: -1, code: "too_many_statements", message: "At most 20 statements." };
  const calls = serve({ "editor/execute": answers(Response.json(refusal, { status: 429 })) });
  const execution = start();
  await vi.waitFor(() => expect(execution.state.value).toBe("unknown"));
  expect(execution.error.value).toMatchObject({ code: "too_many_statements", message: "At most 20 statements." });
  expect(calls).toHaveLength(1);
});

test("events report state, progress and log, and the stream goes on after a cut", async () => {
  const calls = serve({
    "editor/execute": answers(acknowledged("waiting")),
    "editor/events": answers(
      events(
        ["status", { status: 0, query_status: statusOf("running") }],
        ["log", { from: 0, next_from: 2, logs: "one\ntwo" }],
        ["progress", { progress: 42, rows: 0, jobs: [] }],
      ),
      Response.error(),
      events(
        ["status", { status: 0, query_status: statusOf("success") }],
        ["log", { from: 2, next_from: 3, logs: "three" }],
        ["end", { status: 0, query_status: statusOf("success") }],
      ),
    ),
    "editor/fetch_result_data": answers(Response.json({ status: 0, result: pageOf(0, [], null) })),
  });
  const execution = start();
  await vi.waitFor(() => expect(execution.state.value).toBe("running"));
  expect(execution.progress.value).toBe(42);
  await vi.waitFor(() => expect(execution.state.value).toBe("success"), 5000);
  expect(execution.log.value).toEqual({ first: 0, lines: ["one", "two", "three"] });
  const resumed = calls.filter((call) => call.path.includes("events")).map((call) => call.headers.get("Last-Event-ID"));
  expect(resumed).toEqual([null, "3", "3"]);
});

test("the position of an error is that in the submitted text", async () => {
  const failure = {
    status: 1,
    code: "engine_error",
    message: "no such table",
    line: 1,
    column: 15,
    handle: { start: { row: 2, column: 4 } },
    history_uuid: ID,
    query_status: statusOf("failed"),
  };
  serve({
    "editor/execute": answers(Response.json(failure)),
    "editor/events": answers(events(["end", failure])),
  });
  const execution = start();
  await vi.waitFor(() => expect(execution.state.value).toBe("failed"));
  expect(execution.error.value).toMatchObject({ line: 3, column: 19, message: "no such table" });
});

test("the position of an error of a script is that in the script, blanks before the statement included", async () => {
  const statement = "SELECT 1;\n\n  SELECT nope\n  FROM t;  SELECT nope2";
  const starts = [
    { row: 0, column: 0 },
    { row: 2, column: 0 },
    { row: 3, column: 9 },
  ];
  const statements = starts.map((start, index) => ({ ...statusOf("failed"), statement_id: index, start }));
  const positionOf = (statement_id: number, line: number, column: number) =>
    problemOf({
      ...{ status: 1, code: "engine_error", message: "", history_id: 1, history_uuid: ID, statement_id, line, column },
      handle: { statement, start: starts[0] },
      query_status: { ...statusOf("failed"), statements },
    } as never);
  expect(positionOf(1, 1, 8)).toMatchObject({ line: 3, column: 10 });
  expect(positionOf(1, 2, 8)).toMatchObject({ line: 4, column: 8 });
  expect(positionOf(2, 1, 8)).toMatchObject({ line: 4, column: 19 });
});

test("an operation of another user cannot be followed", async () => {
  const missing = { status: -1, code: "operation_not_found", message: "There is no such operation." };
  serve({ "editor/events": answers(Response.json(missing, { status: 404 })) });
  const execution = attachExecution(ID);
  open.push(execution);
  await vi.waitFor(() => expect(execution.state.value).toBe("unknown"));
  expect(execution.error.value?.code).toBe("operation_not_found");
});

test("a cancel before the server has acknowledged the statement is sent once it has", async () => {
  const { promise, resolve } = Promise.withResolvers<Response>();
  const calls = serve({
    "editor/execute": () => promise,
    "editor/events": answers(events(["end", { status: 0, query_status: statusOf("canceled") }])),
    "editor/cancel_statement": answers(
      Response.json({ status: 0, result: { status: 0 }, query_status: statusOf("canceled") }),
    ),
  });
  const execution = start();
  await execution.cancel();
  expect(execution.isCanceling.value).toBe(true);
  resolve(acknowledged("waiting"));
  await vi.waitFor(() => expect(execution.state.value).toBe("canceled"));
  expect(calls.map((call) => call.path).filter((path) => path.includes("cancel"))).toHaveLength(1);
});

test("where the stream is held back, the status and the log are polled", async () => {
  vi.useFakeTimers();
  serve({
    "editor/execute": answers(acknowledged("running")),
    "editor/events": (request) =>
      new Promise((_, reject) => request.signal.addEventListener("abort", () => reject(request.signal.reason))),
    "editor/get_logs": answers(
      Response.json({ status: 0, progress: 50, jobs: [], logs: "one", next_from: 1 }),
      Response.json({ status: 0, progress: 100, jobs: [], logs: "", next_from: 1 }),
    ),
    "editor/check_status": answers(
      Response.json({ status: 0, query_status: statusOf("running") }),
      Response.json({ status: 0, query_status: statusOf("success") }),
    ),
    "editor/fetch_result_data": answers(Response.json({ status: 0, result: pageOf(0, [], null) })),
  });
  const execution = start();
  await vi.advanceTimersByTimeAsync(4000);
  expect(execution.state.value).toBe("success");
  expect(execution.log.value.lines).toEqual(["one"]);
});
