import { beforeEach, expect, test } from "vitest";
import { keepPending, safeTarget, takePending } from "./target.ts";

beforeEach(() => sessionStorage.clear());

test("addresses of this console are kept with query and fragment", () => {
  for (const address of ["/files", "/results/abc?tab=chart#row", "/tables/a/b/c%2Fd", "/"]) {
    expect(safeTarget(address)).toBe(address);
  }
});

test("addresses of other sites and of the login lead to the editor", () => {
  const foreign = [
    "https://evil.example/files",
    "//evil.example",
    "/\\evil.example",
    "\\/evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    " //evil.example",
    "javascript:alert(1)",
    "files",
    "",
    "/.//evil.example",
    "/editor/..//evil.example",
    "/%2e//evil.example",
    "/login",
    "/login/callback?code=1",
    null,
    undefined,
  ];
  for (const address of foreign) expect(safeTarget(address)).toBe("/editor");
});

test("a login at the issuer finds its target again, once", () => {
  keepPending({ target: "/files?path=a", remember: false });
  expect(takePending()).toEqual({ target: "/files?path=a", remember: false, isOfThisTab: true });
  expect(takePending()).toEqual({ target: "/editor", remember: true, isOfThisTab: false });
});

test("a target that was altered in the browser's storage is not followed", () => {
  sessionStorage.setItem("queryserver.login", JSON.stringify({ target: "//evil.example", remember: "x" }));
  expect(takePending()).toEqual({ target: "/editor", remember: true, isOfThisTab: true });
});

test("texts in the browser's storage that are no login are ignored", () => {
  for (const text of ["{", "null", "[]", '"x"', ""]) {
    sessionStorage.setItem("queryserver.login", text);
    expect(takePending()).toEqual({ target: "/editor", remember: true, isOfThisTab: false });
    expect(sessionStorage.getItem("queryserver.login")).toBeNull();
  }
});
