import { act, fireEvent, render, screen } from "@testing-library/preact";
import { LocationProvider } from "preact-iso";
import { beforeEach, expect, test, vi } from "vitest";
import { type Config, config, connectors } from "../app/config.ts";
import { CatalogTree } from "./CatalogTree.tsx";
import { foundOf, hasFilter, toggled, wordsOf } from "./search.ts";
import { forget } from "./store.ts";

const HIVE = { id: "hive", displayName: "Lake", dialect: "hive", dialect_properties: { sql_identifier_quote: "`" } };
const DUCKDB = { id: "7", displayName: "DuckDB", dialect: "duckdb", dialect_properties: { sql_identifier_quote: '"' } };
const TABLES = Array.from({ length: 1000 }, (_, index) => ({ name: `t${index}`, type: "Table", comment: "" }));
const COLUMN = { comment: "", nullable: true, default: null, autoincrement: null };
const COLUMNS = [
  { ...COLUMN, name: "id", type: "int", primary_key: true, partition_key: false },
  { ...COLUMN, name: "order", type: "string", primary_key: false, partition_key: false },
];

let isDown = false;

beforeEach(() => {
  forget();
  isDown = false;
  const interpreters = [HIVE, DUCKDB];
  // The tree reads nothing else of the configuration.
  config.value = { app_config: { editor: { interpreters } } } as unknown as Config;
  // happy-dom has no layout: without a height, a virtual list shows nothing.
  vi.spyOn(HTMLElement.prototype, "clientHeight", "get").mockReturnValue(600);
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(300);
  vi.stubGlobal("fetch", async (request: Request) => {
    const path = new URL(request.url).pathname;
    if (isDown)
      return Response.json({ status: -1, code: "engine_unavailable", message: "Hive is down." }, { status: 503 });
    if (path.includes("entities_interactive")) return Response.json(searchResponse());
    if (path.endsWith("/autocomplete")) return Response.json({ status: 0, databases: ["default", "shop"] });
    if (path.endsWith("/shop/")) return Response.json({ status: 0, tables_meta: [], truncated: false });
    if (path.endsWith("/default/")) return Response.json({ status: 0, tables_meta: TABLES, truncated: false });
    return Response.json({ status: 0, columns: ["id", "order"], extended_columns: COLUMNS });
  });
});

function searchResponse() {
  const record = {
    type: "FIELD",
    name: "order",
    originalName: "default.t3.order",
    parentPath: "/default/t3",
    connector: "hive",
    description: "",
  };
  return {
    status: 0,
    results: [record],
    facets: { type: { FIELD: 1 } },
    totalMatched: 1,
    sources: { sql: { ok: true, message: "" } },
    warnings: [],
  };
}

async function show(onInsert?: (text: string) => void) {
  render(
    <LocationProvider>
      <CatalogTree connector="hive" {...(onInsert ? { onInsert } : {})} />
    </LocationProvider>,
  );
  await screen.findByRole("treeitem", { name: "t0" });
  return screen.getByRole("tree");
}

function press(tree: HTMLElement, ...keys: string[]) {
  for (const key of keys) act(() => void fireEvent.keyDown(tree, { key }));
}

function active(tree: HTMLElement): string | null | undefined {
  return document.getElementById(tree.getAttribute("aria-activedescendant") ?? "")?.textContent;
}

test("the connector of the editor is opened with its usual database, and only visible lines are in the document", async () => {
  await show();
  const items = screen.getAllByRole("treeitem");
  expect(items.map((item) => item.getAttribute("aria-level")).slice(0, 3)).toEqual(["1", "2", "3"]);
  expect(screen.getByRole("treeitem", { name: "t0" }).getAttribute("aria-setsize")).toBe("1000");
  expect(items.length).toBeLessThan(60);
});

test("arrows move, open and close; columns show their types", async () => {
  const tree = await show();
  tree.focus();
  press(tree, "Home");
  expect(active(tree)).toContain("Lake");
  press(tree, "ArrowRight", "ArrowRight");
  expect(active(tree)).toContain("t0");
  press(tree, "ArrowRight");
  await screen.findByRole("treeitem", { name: "id int primary key" });
  press(tree, "ArrowRight");
  expect(active(tree)).toContain("id");
  press(tree, "ArrowLeft", "ArrowLeft");
  expect(screen.queryByRole("treeitem", { name: "id int primary key" })).toBeNull();
  press(tree, "ArrowLeft");
  expect(active(tree)).toContain("default");
  press(tree, "ArrowUp", "ArrowUp");
  expect(active(tree)).toContain("Lake");
});

test("letters move to the next name that starts with them", async () => {
  const tree = await show();
  tree.focus();
  press(tree, "Home", "t", "1", "2");
  expect(active(tree)).toContain("t12");
});

test("the main action of a column inserts its name, quoted where the dialect needs it", async () => {
  const inserted: string[] = [];
  await show((text) => inserted.push(text));
  fireEvent.click(screen.getByRole("treeitem", { name: "t0" }));
  fireEvent.click(await screen.findByRole("treeitem", { name: "id int primary key" }));
  fireEvent.click(screen.getByRole("treeitem", { name: "order string" }));
  expect(inserted).toEqual(["id", "`order`"]);
});

test("an empty database says so, and a failed one shows the message of the server and loads again", async () => {
  await show();
  fireEvent.click(screen.getByRole("treeitem", { name: "default" }));
  fireEvent.click(await screen.findByRole("treeitem", { name: "shop" }));
  await screen.findByRole("treeitem", { name: "No tables" });
  isDown = true;
  fireEvent.click(screen.getByRole("treeitem", { name: "default" }));
  forget();
  fireEvent.click((await screen.findAllByRole("treeitem", { name: "Hive is down." }))[0] ?? document.body);
  isDown = false;
  fireEvent.click((await screen.findAllByRole("treeitem", { name: "Hive is down." }))[0] ?? document.body);
  await screen.findByRole("treeitem", { name: "default" });
});

test("typing filters what is loaded at once, and searches all connectors", async () => {
  await show();
  fireEvent.input(screen.getByRole("textbox"), { target: { value: "T99 type:FIELD" } });
  expect(screen.getAllByRole("treeitem").map((item) => item.textContent?.trim())).toEqual([
    "Lake hive",
    "default",
    "t99",
    ...Array.from({ length: 10 }, (_, index) => `t99${index}`),
  ]);
  fireEvent.click(await screen.findByRole("button", { name: "order Lake › default › t3" }));
  await screen.findByRole("treeitem", { name: "order string" });
  const selected = await screen.findByRole("treeitem", { selected: true });
  expect(selected.textContent).toContain("order");
});

test("without connectors the panel says so", () => {
  config.value = null;
  expect(connectors.value).toEqual([]);
  render(
    <LocationProvider>
      <CatalogTree connector="" />
    </LocationProvider>,
  );
  screen.getByText("No connectors");
});

test("a filter of the search is added and removed as a term; other words filter the tree", () => {
  expect(toggled("orders", "type", "TABLE")).toBe("orders type:TABLE");
  expect(toggled("orders type:TABLE x", "type", "TABLE")).toBe("orders x");
  expect(toggled("", "tags", 'a "b"')).toBe('tag:"a \\"b\\""');
  expect(hasFilter("orders type:TABLE", "type", "TAB")).toBe(false);
  expect(wordsOf('Ord* type:TABLE "two words" db:"a b"')).toEqual(["ord", "two words"]);
});

test("names of a found column are distinguished, also if they contain dots and slashes", () => {
  const record = {
    ...(searchResponse().results[0] as object),
    parentPath: "/a.b/c/d.e",
    originalName: "a.b/c.d.e.order",
  };
  expect(foundOf(record as Parameters<typeof foundOf>[0])?.path).toEqual(["a.b/c", "d.e", "order"]);
});
