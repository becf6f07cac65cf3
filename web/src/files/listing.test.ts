import { beforeEach, expect, test, vi } from "vitest";
import { Listing, PAGE_ENTRIES } from "./listing.ts";
import { failuresOf } from "./operations.ts";
import { MAX_SELECTED, Selection } from "./selection.ts";

const TOTAL = 100_000;
const QUERY = { path: "/many", sortby: "name", descending: false, filter: "" } as const;
const calls: number[] = [];

beforeEach(() => {
  calls.length = 0;
  vi.stubGlobal("fetch", async (request: Request) => {
    const page = Number(new URL(request.url, "http://server").searchParams.get("pagenum"));
    calls.push(page);
    const first = (page - 1) * PAGE_ENTRIES;
    const files = Array.from({ length: PAGE_ENTRIES }, (_, index) => ({
      path: `/many/${first + index}`,
      type: "file",
    }));
    return Response.json({ status: 0, path: "/many", files, page: { total_count: TOTAL, total_is_exact: true } });
  });
});

async function loaded(): Promise<Listing> {
  const listing = new Listing(QUERY);
  await vi.waitFor(() => expect(listing.total.value).toBe(TOTAL));
  return listing;
}

test("only the pages of the visible range are loaded", async () => {
  const listing = await loaded();
  listing.ensure(TOTAL - 10, TOTAL - 1);
  await vi.waitFor(() => expect(listing.entry(TOTAL - 1)?.path).toBe(`/many/${TOTAL - 1}`));
  expect(calls).toEqual([1, TOTAL / PAGE_ENTRIES]);
});

test("pages that are far from the visible range are dropped", async () => {
  const listing = await loaded();
  for (let page = 1; page < 40; page++) {
    listing.ensure(page * PAGE_ENTRIES, page * PAGE_ENTRIES);
    await vi.waitFor(() => expect(listing.entry(page * PAGE_ENTRIES)).toBeDefined());
  }
  expect(listing.entry(0)).toBeUndefined();
  expect(listing.entry(39 * PAGE_ENTRIES)).toBeDefined();
});

test("Shift extends the selection from the last single one, over pages that are not loaded", async () => {
  const selection = new Selection(await loaded());
  selection.only(10);
  await selection.extend(510);
  expect(selection.entries.value).toHaveLength(501);
  await selection.extend(8);
  expect(selection.entries.value.map((entry) => entry.path)).toEqual(["/many/8", "/many/9", "/many/10"]);
});

test("a selection has at most as many entries as a change takes", async () => {
  const selection = new Selection(await loaded());
  await selection.all();
  expect(selection.entries.value).toHaveLength(MAX_SELECTED);
});

test("a toggled entry is added and removed", async () => {
  const selection = new Selection(await loaded());
  selection.only(1);
  selection.toggle(3);
  selection.toggle(1);
  expect(selection.entries.value.map((entry) => entry.path)).toEqual(["/many/3"]);
});

test("a response to several changes contains the reason of each entry that failed", () => {
  const results = { "/a": { status: 0 }, "/b": { status: -1, code: "path_not_found", message: "/b does not exist." } };
  expect(failuresOf({ status: -1, code: "partial_failure", results })).toEqual([
    { path: "/b", message: "/b does not exist." },
  ]);
  expect(failuresOf({ status: -1, code: "path_not_found" })).toEqual([]);
});
