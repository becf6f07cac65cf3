import { beforeEach, expect, test, vi } from "vitest";
import { session } from "../app/session.ts";
import { columns, databases, forget, functions, loaded, tables } from "./store.ts";

interface Sent {
  path: string;
  body: { snippet: { type: string }; page?: number; limit?: number; refresh?: boolean; operation?: string };
  signal: AbortSignal;
}

/** Answer each request with what the function returns, after some milliseconds, unless it is aborted until then. */
function serving(answer: (sent: Sent) => Record<string, unknown>, delayMs = 0): Sent[] {
  const received: Sent[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    const sent = {
      path: decodeURIComponent(new URL(request.url).pathname),
      body: await request.json(),
      signal: request.signal,
    };
    received.push(sent);
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    sent.signal.throwIfAborted();
    return Response.json({ status: 0, truncated: false, ...answer(sent) });
  });
  return received;
}

function tableNames(count: number) {
  return Array.from({ length: count }, (_, index) => ({ name: `t${index}`, type: "Table", comment: "" }));
}

function tableOf(columnCount: number) {
  return { name: "t", columns: Array.from({ length: columnCount }, (_, index) => `c${index}`), extended_columns: [] };
}

beforeEach(() => {
  forget();
});

test("callers of the same list share one request, and later ones get the kept list", async () => {
  const sent = serving(() => ({ databases: ["default", "shop"] }));
  const both = await Promise.all([databases("hive"), databases("hive")]);
  expect(both).toEqual([
    ["default", "shop"],
    ["default", "shop"],
  ]);
  await databases("hive");
  expect(sent).toHaveLength(1);
  expect(loaded.databases("hive")).toEqual(["default", "shop"]);
  expect(loaded.databases("trino")).toBeUndefined();
});

test("names of databases and tables are one path segment each", async () => {
  const sent = serving(() => tableOf(1));
  await columns("hive", "a/b", "x y?#%");
  expect(sent[0]?.path).toBe("/api/v1/editor/autocomplete/a/b/x y?#%");
});

test("the empty name is the default database, not the list of databases", async () => {
  const sent = serving(() => ({ tables_meta: tableNames(1) }));
  await expect(tables("hive", "")).resolves.toEqual({ tables: tableNames(1), isComplete: true });
  expect(sent[0]?.path).toBe("/api/v1/editor/autocomplete//");
});

test("a request ends when the last of its callers is gone, and not before", async () => {
  const sent = serving(() => ({ databases: [] }), 200);
  const [first, second] = [new AbortController(), new AbortController()];
  const lookups = [databases("hive", { signal: first.signal }), databases("hive", { signal: second.signal })];
  await vi.waitFor(() => expect(sent).toHaveLength(1));
  first.abort();
  await expect(lookups[0]).rejects.toMatchObject({ name: "AbortError" });
  expect(sent[0]?.signal.aborted).toBe(false);
  second.abort();
  await expect(lookups[1]).rejects.toMatchObject({ name: "AbortError" });
  expect(sent[0]?.signal.aborted).toBe(true);
  await expect(databases("hive")).resolves.toEqual([]);
});

test("a failure is passed on and not kept", async () => {
  let isDown = true;
  serving(() => (isDown ? { status: -1, code: "engine_unavailable", message: "Down." } : { databases: ["a"] }));
  await expect(databases("hive")).rejects.toMatchObject({ code: "engine_unavailable", message: "Down." });
  isDown = false;
  await expect(databases("hive")).resolves.toEqual(["a"]);
});

test("a refresh queries the data source again, and a list that was forgotten meanwhile is not kept", async () => {
  const sent = serving(({ body }) => ({ databases: [body.refresh ? "new" : "old"] }));
  await databases("hive");
  await expect(databases("hive", { refresh: true })).resolves.toEqual(["new"]);
  expect(loaded.databases("hive")).toEqual(["new"]);
  const running = databases("hive", { refresh: true });
  forget("hive");
  await running;
  expect(loaded.databases("hive")).toBeUndefined();
  expect(sent.map((one) => one.body.refresh)).toEqual([false, true, true]);
});

test("forget drops the names of one connector only", async () => {
  serving(() => ({ databases: ["a"] }));
  await Promise.all([databases("hive"), databases("hive2")]);
  forget("hive");
  expect(loaded.databases("hive")).toBeUndefined();
  expect(loaded.databases("hive2")).toEqual(["a"]);
});

test("the first names of a long list are there before the last ones", async () => {
  const all = tableNames(12_000);
  const sent = serving(({ body: { page = 1, limit = 0 } }) => ({
    tables_meta: all.slice((page - 1) * limit, page * limit),
    truncated: page * limit < all.length,
  }));
  const parts: number[] = [];
  const list = await tables("hive", "shop", { onPart: (part) => parts.push(part.tables.length) });
  expect(parts).toEqual([500, 5000, 10_000, 12_000]);
  expect(list).toEqual({ tables: all, isComplete: true });
  expect(sent).toHaveLength(4);
  expect(loaded.tables("hive", "shop")).toBe(list);
});

test("memory is bounded: columns of the tables that were used least recently are dropped", async () => {
  serving(() => tableOf(30_000));
  for (const table of ["a", "b", "c"]) await columns("hive", "shop", table);
  await columns("hive", "shop", "a");
  await columns("hive", "shop", "d");
  expect(loaded.columns("hive", "shop", "a")).toBeDefined();
  expect(loaded.columns("hive", "shop", "b")).toBeUndefined();
  expect(loaded.columns("hive", "shop", "d")).toBeDefined();
});

test("functions are listed by the same call", async () => {
  const sent = serving(() => ({ functions: [{ name: "abs" }] }));
  await expect(functions("hive", null)).resolves.toEqual([{ name: "abs" }]);
  expect(sent[0]?.body.operation).toBe("functions");
  expect(loaded.functions("hive")).toHaveLength(1);
});

test("nothing stays after the logout", async () => {
  serving(() => ({ databases: ["a"] }));
  session.begin({ access: "token" });
  await databases("hive");
  session.accessToken.value = null;
  expect(loaded.databases("hive")).toBeUndefined();
});
