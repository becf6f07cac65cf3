import { describe, expect, test, vi } from "vitest";
import { allParts, arrivedBytes, newUuid, pauseMs, planOf, rangeOf, sha256 } from "./parts.ts";

const MIB = 1024 * 1024;

describe("a plan", () => {
  test("has parts that cover the file once", () => {
    const plan = planOf(12 * MIB + 1, 5 * MIB);
    const ranges = allParts(plan).map((part) => rangeOf(plan, part));
    expect(ranges).toEqual([
      [0, 5 * MIB],
      [5 * MIB, 10 * MIB],
      [10 * MIB, 12 * MIB + 1],
    ]);
  });

  test("has one part for an empty file", () => {
    expect(planOf(0, 5 * MIB).parts).toBe(1);
  });

  test("has no part below the least of S3, and at most 10,000", () => {
    expect(planOf(20 * MIB, 1024).partBytes).toBe(5 * MIB);
    expect(planOf(10 ** 12, 5 * MIB).parts).toBeLessThanOrEqual(10_000);
  });

  test("is the same for the part size that it gave", () => {
    const plan = planOf(10 ** 12, 5 * MIB);
    expect(planOf(10 ** 12, plan.partBytes)).toEqual(plan);
  });
});

test("bytes of missing parts have not arrived", () => {
  const plan = planOf(12 * MIB, 5 * MIB);
  expect(arrivedBytes(plan, [])).toBe(12 * MIB);
  expect(arrivedBytes(plan, [0, 2])).toBe(5 * MIB);
});

test("pauses double up to 15 s; the server may demand a longer one", () => {
  expect([0, 1, 2, 20].map((attempt) => pauseMs(attempt, null))).toEqual([500, 1000, 2000, 15_000]);
  expect(pauseMs(0, 30)).toBe(30_000);
});

test("a UUID is one of random digits", () => {
  expect(newUuid()).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
});

test("a part has no digest where the browser offers none", async () => {
  vi.stubGlobal("isSecureContext", false);
  expect(await sha256(new ArrayBuffer(1))).toBeNull();
});
