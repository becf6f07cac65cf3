import { afterEach, expect, test, vi } from "vitest";
import { session } from "../app/session.ts";
import { api, data } from "./client.ts";

afterEach(() => {
  session.accessToken.value = null;
});

function answering(...responses: Response[]) {
  const sent: Request[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    sent.push(request);
    return responses.shift() ?? Response.error();
  });
  return sent;
}

test("a body with another status than 0 is an error, also with HTTP 200", async () => {
  answering(Response.json({ status: 1, code: "rejected", message: "Only reads are permitted." }));
  await expect(data(api.GET("/api/v1/iam/preferences", {}))).rejects.toMatchObject({
    code: "rejected",
    message: "Only reads are permitted.",
    httpStatus: 200,
  });
});

test("the texts of single fields follow the message", async () => {
  answering(
    Response.json(
      { status: -1, code: "invalid", message: "Not valid.", errors: { port: ["Too large."] } },
      { status: 400 },
    ),
  );
  await expect(data(api.GET("/api/v1/iam/preferences", {}))).rejects.toThrow("Not valid.\nport: Too large.");
});

test("a call without an answer is an error that says so", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  await expect(data(api.GET("/api/v1/iam/preferences", {}))).rejects.toMatchObject({ code: "no_response" });
});

test("a pause that the server names fits into a timer", async () => {
  const pauses = { "3": 3, "99999999999": 86_400, "-5": 0, "Wed, 21 Oct 2026 07:28:00 GMT": null, "": null };
  for (const [text, pause] of Object.entries(pauses)) {
    answering(Response.json({}, { status: 503, headers: { "Retry-After": text } }));
    await expect(data(api.GET("/api/v1/iam/preferences", {}))).rejects.toMatchObject({ retryAfterS: pause });
  }
});

test("a page of a proxy in place of a response is an error with one sentence", async () => {
  for (const status of [200, 502]) {
    const headers = { "Content-Type": "text/html" };
    answering(new Response("<html><script>alert(1)</script><h1>Bad Gateway</h1></html>", { status, headers }));
    const problem: unknown = await data(api.GET("/api/v1/iam/preferences", {})).catch((caught: unknown) => caught);
    expect(String(problem)).not.toMatch(/[<>]|Unexpected token/);
  }
});

test("calls carry the access token", async () => {
  session.begin({ access: "abc" });
  const sent = answering(Response.json({ status: 0, preferences: { big_numbers: "text" } }));
  await data(api.GET("/api/v1/iam/preferences", {}));
  expect(sent[0]?.headers.get("Authorization")).toBe("Bearer abc");
});
