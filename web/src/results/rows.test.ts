import { expect, test, vi } from "vitest";
import { ApiError } from "../api/errors.ts";
import { RowSource, TOO_LARGE } from "./rows.ts";
import { pageOf } from "./testing.ts";

const TOTAL = 1_000_000;

/** A source over a table whose row i is [i, text]. */
function table(text = "", columns = 1, delayMs = 1) {
  const requested: Array<{ start: number; rows: number; signal: AbortSignal }> = [];
  const source = new RowSource("id", null, async (start, rows, signal) => {
    requested.push({ start, rows, signal });
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    signal.throwIfAborted();
    const count = Math.min(rows, TOTAL - start);
    const extra = Array<string>(columns).fill(text);
    return pageOf(
      start,
      Array.from({ length: count }, (_, index) => [start + index, ...extra]),
      TOTAL,
    );
  });
  return { source, requested };
}

test("each row is the one of its index, wherever the view goes", async () => {
  const { source } = table();
  await source.awaitFirstRows();
  for (const start of [0, 999_950, 123_456, 60, 500_000]) {
    source.ensure(start, start + 50);
    await vi.waitFor(() => expect(source.row(start + 49)).toBeDefined());
    for (let row = start; row < start + 50; row += 1) expect(source.row(row)?.[0]).toBe(row);
  }
  source.dispose();
});

test("pages far from the view are dropped, so that memory is bounded", async () => {
  const { source } = table("x".repeat(10_000));
  await source.awaitFirstRows();
  for (let start = 0; start < 20_000; start += 500) {
    source.ensure(start, start + 40);
    await vi.waitFor(() => expect(source.row(start + 39)).toBeDefined());
  }
  const kept = Array.from({ length: 20_000 }, (_, row) => source.row(row)).filter((row) => row !== undefined);
  expect(kept.length * 10_000).toBeLessThan(40_000_000);
  expect(source.row(19_500)).toBeDefined();
  source.dispose();
});

test("a row above the limit of a page is skipped, and the rows behind it are shown", async () => {
  const [total, tooLarge] = [1000, [0, 1, 700]];
  const source = new RowSource("id", null, async (start, rows) => {
    if (tooLarge.includes(start)) throw new ApiError(413, "row_too_large", `Row ${start} is larger than the limit.`);
    const end = Math.min(start + rows, total, ...tooLarge.filter((row) => row > start));
    return pageOf(
      start,
      Array.from({ length: end - start }, (_, index) => [start + index]),
      total,
    );
  });
  await source.awaitFirstRows();
  expect([source.row(0), source.row(1), source.row(2)]).toEqual([TOO_LARGE, TOO_LARGE, [2]]);
  source.ensure(690, 710);
  await vi.waitFor(() => expect(source.row(709)).toEqual([709]));
  expect(source.row(700)).toBe(TOO_LARGE);
  expect(source.problem.value).toBeNull();
  await expect(source.read(699, 702, AbortSignal.timeout(1000))).rejects.toThrow("Row 701 is too large");
  source.dispose();
});

test("requests for rows that are no longer shown are aborted", async () => {
  const { source, requested } = table("", 1, 100);
  await source.awaitFirstRows();
  await new Promise((resolve) => setTimeout(resolve, 60));
  source.ensure(200_000, 200_040);
  source.ensure(700_000, 700_040);
  await vi.waitFor(() => expect(source.row(700_000)).toBeDefined());
  const stale = requested.filter(({ start }) => start >= 199_000 && start < 300_000);
  expect(stale.map(({ signal }) => signal.aborted)).toContain(true);
  expect(stale.map(({ signal }) => signal.aborted)).not.toContain(false);
  expect(source.row(200_000)).toBeUndefined();
  source.dispose();
});

test("a page has fewer rows if there are many columns", async () => {
  const { source, requested } = table("", 500);
  await source.awaitFirstRows();
  source.ensure(5000, 5030);
  await vi.waitFor(() => expect(source.row(5029)).toBeDefined());
  expect(Math.max(...requested.slice(1).map(({ rows }) => rows))).toBeLessThanOrEqual(40);
  source.dispose();
});

test("rows that arrive while the statement runs fill the last page", async () => {
  let stored = 3;
  const source = new RowSource("id", null, async (start, rows) => {
    const count = Math.max(0, Math.min(rows, stored - start));
    return pageOf(
      start,
      Array.from({ length: count }, (_, index) => [start + index]),
      stored === 7 ? 7 : null,
    );
  });
  await source.awaitFirstRows();
  expect(source.rowCount.value).toBeNull();
  expect(source.knownRows.value).toBe(3);
  stored = 7;
  source.report(7, true);
  source.ensure(0, 10);
  await vi.waitFor(() => expect(source.row(6)).toEqual([6]));
  expect(source.rowCount.value).toBe(7);
  source.dispose();
});

test("a request that fails without an answer is repeated", async () => {
  let calls = 0;
  const source = new RowSource("id", null, async (start) => {
    calls += 1;
    if (calls < 3) throw new TypeError("Failed to fetch");
    return pageOf(start, [[1]], 1);
  });
  await source.awaitFirstRows();
  expect(source.row(0)).toEqual([1]);
  expect(source.problem.value).toBeNull();
});
