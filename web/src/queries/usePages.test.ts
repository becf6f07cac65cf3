import { act, renderHook, waitFor } from "@testing-library/preact";
import { expect, test, vi } from "vitest";
import { usePages } from "./usePages.ts";

test("a reload loads the pages that are shown again, and no answer of the round before is used", async () => {
  const answers: Array<(part: { count: number; entries: string[] }) => void> = [];
  const load = vi.fn((_page: number, _signal: AbortSignal) => {
    return new Promise<{ count: number; entries: string[] }>((resolve) => answers.push(resolve));
  });
  const { result } = renderHook(() => usePages(load, 2));
  act(() => result.current.ensure(4, 6));
  expect(load.mock.calls.map(([page]) => page)).toEqual([1, 3]);
  const before = result.current.ensure;
  act(() => result.current.reload());
  expect(result.current.ensure).not.toBe(before);
  act(() => result.current.ensure(4, 6));
  expect(load.mock.calls.map(([page]) => page)).toEqual([1, 3, 1, 3]);
  expect(load.mock.calls[1]?.[1].aborted).toBe(true);
  await act(async () => {
    answers[1]?.({ count: 6, entries: ["old", "old"] });
    answers[3]?.({ count: 6, entries: ["e", "f"] });
  });
  await waitFor(() => expect(result.current.entry(5)).toBe("f"));
  expect(result.current.entry(4)).toBe("e");
});
