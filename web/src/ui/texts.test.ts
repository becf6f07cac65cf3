import { expect, test } from "vitest";
import { ago, bytesText, countText, durationText, rowsText } from "./texts.ts";

test("times are relative for a week", () => {
  const now = Date.parse("2026-02-01T12:00:00Z");
  expect(ago("2026-02-01T11:59:30Z", now)).toBe("just now");
  expect(ago("2026-02-01T09:00:00Z", now)).toBe("3 hours ago");
  expect(ago("2026-01-31T10:00:00Z", now)).toBe("yesterday");
  expect(ago("2025-12-24T10:00:00Z", now)).toContain("2025");
});

test("durations have the unit that fits", () => {
  expect([3, 1904, 125_000, 3_607_900].map(durationText)).toEqual(["3 ms", "1.9 s", "2:05 min", "1:00:07 h"]);
});

test("counts have their noun, and all digits", () => {
  expect([countText(1, "entry", "entries"), countText(2000, "entry", "entries")]).toEqual(["1 entry", "2,000 entries"]);
  expect([rowsText("1"), rowsText("9007199254740993")]).toEqual(["1 row", "9,007,199,254,740,993 rows"]);
});

test("sizes have a unit to the base of 1024", () => {
  expect([0, 1, 1536, 100 * 1024 ** 2].map(bytesText)).toEqual([
    "0\u00a0bytes",
    "1\u00a0byte",
    "1.5\u00a0KB",
    "100.0\u00a0MB",
  ]);
});
