import { expect, test } from "vitest";
import { PageStorage } from "./storage.ts";

test("a blocked storage is replaced until the page is left", () => {
  const storage = new PageStorage(() => {
    throw new DOMException("Access is denied.", "SecurityError");
  });
  expect(storage.get("a")).toBeNull();
  expect(storage.set("a", "1")).toBe(false);
  expect(storage.get("a")).toBe("1");
  expect(storage.keys()).toEqual(["a"]);
  storage.remove("a");
  expect(storage.get("a")).toBeNull();
});

test("a full storage keeps its former content", () => {
  const storage = new PageStorage(() => localStorage);
  expect(storage.set("a", "1")).toBe(true);
  const full = new PageStorage(() => ({
    ...localStorage,
    getItem: (key: string) => localStorage.getItem(key),
    setItem: () => {
      throw new DOMException("Full.", "QuotaExceededError");
    },
  }));
  expect(full.set("a", "2")).toBe(false);
  expect(full.get("a")).toBe("1");
  expect(storage.keys()).toEqual(["a"]);
  storage.remove("a");
});
