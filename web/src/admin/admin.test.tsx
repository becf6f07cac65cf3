import { act, cleanup, render, screen } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { areasOf, type Finding, summaryOf } from "./findings.ts";
import { EVERYTHING_ACTIVE, queryOf, type Statement, stateText } from "./statements.ts";
import { useRefreshed } from "./useRefreshed.ts";

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  cleanup();
  vi.useRealTimers();
  vi.restoreAllMocks();
});

test("only chosen filters are sent", () => {
  expect(queryOf(EVERYTHING_ACTIVE, null)).toEqual({ state: "active", limit: 100 });
  expect(queryOf({ user: "ana", connector: "7", state: "failed", olderThanS: 60 }, 41)).toEqual({
    state: "failed",
    limit: 100,
    user: "ana",
    connector: "7",
    older_than_s: 60,
    after: 41,
  });
});

test("a statement whose stop is not confirmed is shown as stopping", () => {
  const running: Statement = {
    id: "a",
    history_id: 1,
    user: "ana",
    connector: "7",
    dialect: "hive",
    state: "running",
    submitted: "2026-01-05T09:10:11Z",
    started: null,
    ended: null,
    elapsed_ms: 0,
    queued_ms: 0,
    rows: 0,
    bytes: 0,
    progress: 0,
    server: null,
    session_id: 1,
    error_code: null,
    cancel_requested: true,
    canceled_by: "root",
    is_import: false,
  };
  expect(stateText(running)).toBe("Stopping");
  expect(stateText({ ...running, state: "canceled" })).toBe("Canceled");
  expect(stateText({ ...running, cancel_requested: false })).toBe("Running");
});

const finding = (area: string, state: Finding["state"], what = ""): Finding => ({ area, state, what, to_do: "" });

test("areas with errors come first, and the errors first within them", () => {
  const areas = areasOf([
    finding("database", "ok"),
    finding("engines", "ok", "one"),
    finding("engines", "error", "two"),
    finding("disk", "warning"),
    finding("keys", "ok"),
  ]);
  expect(areas.map(({ name, state }) => [name, state])).toEqual([
    ["engines", "error"],
    ["disk", "warning"],
    ["database", "ok"],
    ["keys", "ok"],
  ]);
  expect(areas[0]?.findings.map(({ what }) => what)).toEqual(["two", "one"]);
});

test("errors and warnings are counted in words", () => {
  expect(summaryOf({ errors: 0, warnings: 0 })).toBe("No problems were found.");
  expect(summaryOf({ errors: 1, warnings: 2 })).toBe("1 error, 2 warnings.");
});

async function pass(ms: number) {
  await act(async () => {
    await vi.advanceTimersByTimeAsync(ms);
  });
}

function Refreshed({ isLoading, reload }: { isLoading: boolean; reload: () => void }) {
  useRefreshed(isLoading, reload, 3000);
  return <p>shown</p>;
}

test("a list is loaded again after its last load has ended, and only while the page is visible", async () => {
  const reload = vi.fn();
  const visibility = vi.spyOn(document, "visibilityState", "get").mockReturnValue("visible");
  const { rerender } = render(<Refreshed isLoading reload={reload} />);
  expect(screen.getByText("shown")).toBeTruthy();
  await pass(5000);
  expect(reload).not.toHaveBeenCalled();
  await act(() => rerender(<Refreshed isLoading={false} reload={reload} />));
  await pass(3000);
  expect(reload).toHaveBeenCalledTimes(1);
  visibility.mockReturnValue("hidden");
  document.dispatchEvent(new Event("visibilitychange"));
  await pass(60_000);
  expect(reload).toHaveBeenCalledTimes(1);
  visibility.mockReturnValue("visible");
  document.dispatchEvent(new Event("visibilitychange"));
  await pass(3000);
  expect(reload).toHaveBeenCalledTimes(2);
});
