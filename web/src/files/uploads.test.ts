import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { session } from "../app/session.ts";
import { operations, perform } from "./operations.ts";
import { upload, uploads } from "./uploads.ts";

function token(userId: number): string {
  return `e30.${btoa(JSON.stringify({ user_id: userId, iat: 0, exp: 3600 })).replaceAll("=", "")}.a`;
}

const names = () => uploads.value.map((one) => one.record.name);

beforeEach(() => {
  sessionStorage.clear();
  // No call is answered, but each ends when it is aborted.
  vi.stubGlobal("fetch", (request: Request) => {
    return new Promise((_, reject) => {
      request.signal.addEventListener("abort", () => reject(new DOMException("ended", "AbortError")));
    });
  });
});

afterEach(async () => {
  await session.end();
  vi.unstubAllGlobals();
});

test("uploads and changes of a user are gone after the logout, and interrupted at the user's next login", async () => {
  session.begin({ access: token(1) });
  upload([new File(["x"], "of-one.csv")], "/user/one");
  void perform("Moving of-one.csv", "Moved", () => new Promise(() => undefined));
  const [running] = uploads.value;
  expect(names()).toEqual(["of-one.csv"]);
  await session.end();
  expect(running?.state.value).toBe("paused");
  expect(names()).toEqual([]);
  expect(operations.value).toEqual([]);
  session.begin({ access: token(2) });
  expect(names()).toEqual([]);
  await session.end();
  session.begin({ access: token(1) });
  expect(names()).toEqual(["of-one.csv"]);
  expect(uploads.value[0]?.state.value).toBe("detached");
});
