import { fireEvent, render, screen, waitFor } from "@testing-library/preact";
import { expect, test, vi } from "vitest";
import { named } from "../results/exports.ts";
import { foldersOf, isWithin, listDocuments } from "./documents.ts";
import { SaveDialog } from "./SaveDialog.tsx";

const FIELDS = { uuid: "u", version: 3, name: "Sales", description: "", folder: "/reports", parameters: [] };

function answering(bodies: Record<string, unknown>) {
  const sent: Array<{ path: string; body: unknown }> = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    const { pathname, search } = new URL(request.url);
    const text = await request.text();
    sent.push({ path: pathname + search, body: text === "" ? null : JSON.parse(text) });
    const known = Object.entries(bodies).find(([path]) => pathname.endsWith(path));
    return Response.json(known?.[1] ?? { status: 0, documents: [], next_after: null });
  });
  return sent;
}

test("folders contain those above them, and each once", () => {
  const entries = [{ folder: "/b/c" }, { folder: "/" }, { folder: "/a" }, { folder: "/b/c" }];
  expect(foldersOf(entries)).toEqual(["/", "/a", "/b", "/b/c"]);
  expect(isWithin("/b/c", "/b")).toBe(true);
  expect(isWithin("/bc", "/b")).toBe(false);
});

test("lists are read to their last page", async () => {
  const pages = [
    { status: 0, documents: [{ uuid: "1" }], next_after: "x-1" },
    { status: 0, documents: [{ uuid: "2" }], next_after: null },
  ];
  const urls: string[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    urls.push(request.url);
    return Response.json(pages.shift());
  });
  const parts: number[] = [];
  const all = await listDocuments({ text: "a b", isTrash: false }, AbortSignal.timeout(1000), (part) =>
    parts.push(part.length),
  );
  expect(all.map((entry) => entry.uuid)).toEqual(["1", "2"]);
  expect(parts).toEqual([1]);
  expect(urls[1]).toContain("after=x-1");
  expect(urls[1]).toContain("text=a%20b");
});

test("a saved query keeps its name and folder, and the save names the version that was shown", async () => {
  const document = { ...FIELDS, permission: "manage" };
  const sent = answering({ "/documents/u": { status: 0, document }, "/documents/save": { status: 0, document } });
  const onSaved = vi.fn();
  render(
    <SaveDialog
      draft={{ uuid: "u", statement: "SELECT 2", connector: "duckdb" }}
      onSaved={onSaved}
      onClose={vi.fn()}
    />,
  );
  fireEvent.click(await screen.findByRole("button", { name: "Save", hidden: true }));
  await waitFor(() => expect(onSaved).toHaveBeenCalled());
  const saved = sent.find(({ path }) => path.endsWith("/save"));
  expect(saved?.body).toMatchObject({ document: { uuid: "u", version: 3, name: "Sales", folder: "/reports" } });
});

test("a save says that the query was saved since its text was opened", async () => {
  const document = { ...FIELDS, permission: "manage", modified: "2026-01-05T09:10:11Z", modified_by: "ana" };
  answering({ "/documents/u": { status: 0, document } });
  const draft = { uuid: "u", statement: "SELECT 2", connector: "duckdb" };
  const { rerender } = render(<SaveDialog draft={{ ...draft, version: 2 }} onSaved={vi.fn()} onClose={vi.fn()} />);
  expect((await screen.findByRole("alert", { hidden: true })).textContent).toContain("ana has saved another text");
  rerender(<SaveDialog draft={{ ...draft, version: 3 }} onSaved={vi.fn()} onClose={vi.fn()} />);
  expect(screen.queryByRole("alert", { hidden: true })).toBeNull();
});

test("a query that the user may only run can be saved as a copy alone", async () => {
  answering({ "/documents/u": { status: 0, document: { ...FIELDS, permission: "run" } } });
  render(
    <SaveDialog
      draft={{ uuid: "u", statement: "SELECT 2", connector: "duckdb" }}
      onSaved={vi.fn()}
      onClose={vi.fn()}
    />,
  );
  const copy = await screen.findByRole("button", { name: "Save as a copy", hidden: true });
  expect(copy).toHaveProperty("disabled", false);
  expect(screen.getByRole("button", { name: "Save", hidden: true })).toHaveProperty("disabled", true);
});

test("the name of a file follows its format and compression, that of a folder has none", () => {
  expect(named("result.csv", "tsv", "gzip", false)).toBe("result.tsv.gz");
  expect(named("result.tsv.gz", "parquet", "gzip", false)).toBe("result.parquet");
  expect(named("a.b.csv", "csv", "none", true)).toBe("a.b");
});
