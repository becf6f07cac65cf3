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

test("calls carry the access token", async () => {
  session.begin({ access: "abc" });
  const sent = answering(Response.json({ status: 0, preferences: { big_numbers: "text" } }));
  await data(api.GET("/api/v1/iam/preferences", {}));
  expect(sent[0]?.headers.get("Authorization")).toBe("Bearer abc");
});
