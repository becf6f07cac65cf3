import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Upload, type UploadRecord } from "./Upload.ts";

const MIB = 1024 * 1024;
const RECORD: UploadRecord = {
  id: "1f0c6a1e-2f0b-4a55-9a53-5d3c8e6c9a10",
  name: "a.bin",
  size: 12 * MIB,
  lastModified: 1,
  directory: "/user/ana",
  overwrite: false,
  partBytes: 5 * MIB,
};

/** A server that keeps which parts it has. `refuse` may answer a call in its place, or cut the connection. */
class Server {
  readonly calls: string[] = [];
  readonly received = new Set<number>();
  refuse: (call: string) => Response | "cut" | null = () => null;

  readonly fetch = async (request: Request): Promise<Response> => {
    const name = new URL(request.url, "http://server").pathname.replace("/api/v1/storage/upload/", "");
    const form = name === "chunks" && request.method === "POST" ? await request.formData() : null;
    const part = form === null ? null : Number(form.get("qqpartindex"));
    const call = part === null ? `${request.method} ${name}` : `part ${part}`;
    this.calls.push(call);
    const refused = this.refuse(call);
    if (request.signal.aborted) throw new DOMException("The call was ended.", "AbortError");
    if (refused === "cut") throw new TypeError("Failed to fetch");
    if (refused) return refused;
    if (part !== null) this.received.add(part);
    return Response.json({ status: 0, missing_parts: [0, 1, 2].filter((one) => !this.received.has(one)) });
  };
}

const server = { now: new Server() };

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  server.now = new Server();
  vi.stubGlobal("fetch", server.now.fetch);
});

afterEach(() => {
  vi.useRealTimers();
});

/** A file of 12 MiB whose parts have one byte each, which keeps the tests fast. */
class SparseFile extends File {
  override get size(): number {
    return RECORD.size;
  }

  override slice(): Blob {
    return new Blob(["x"]);
  }
}

function file(): File {
  return new SparseFile([], RECORD.name, { lastModified: RECORD.lastModified });
}

function failure(status: number, code: string): Response {
  return Response.json({ status: -1, code, message: code }, { status });
}

test("all parts arrive before the upload is completed", async () => {
  const upload = new Upload(RECORD, file());
  await upload.run();
  expect(upload.state.value).toBe("done");
  expect(upload.arrived.value).toBe(RECORD.size);
  expect(server.now.calls[0]).toBe("part 0");
  expect(server.now.calls.toSorted()).toEqual(["POST complete", "part 0", "part 1", "part 2"]);
});

test("after a cut, only the missing parts are sent again", async () => {
  const cuts = ["part 2"];
  server.now.refuse = (call) => (call === cuts[0] && cuts.pop() ? "cut" : null);
  const upload = new Upload(RECORD, file());
  const end = upload.run();
  await vi.waitFor(() => expect(upload.state.value).toBe("offline"));
  expect(upload.problem.value?.code).toBe("no_response");
  await vi.advanceTimersByTimeAsync(600);
  await end;
  expect(upload.state.value).toBe("done");
  expect(server.now.calls.filter((call) => call === "part 0")).toHaveLength(1);
  expect(server.now.calls).toContain("GET chunks");
});

test("a refusal ends the upload with the server's message", async () => {
  server.now.refuse = (call) => (call === "part 0" ? failure(409, "already_exists") : null);
  const upload = new Upload(RECORD, file());
  await upload.run();
  expect([upload.state.value, upload.problem.value?.code]).toEqual(["failed", "already_exists"]);
  expect(server.now.calls).toEqual(["part 0"]);
});

test("a replacement is a new upload that says so", async () => {
  server.now.refuse = () => failure(409, "already_exists");
  const upload = new Upload(RECORD, file());
  await upload.run();
  server.now.refuse = () => null;
  upload.resume(true);
  await upload.run();
  expect(upload.state.value).toBe("done");
  expect(upload.record.overwrite).toBe(true);
  expect(upload.record.id).not.toBe(RECORD.id);
});

test("an upload of an earlier page goes on with what is missing", async () => {
  server.now.received.add(0).add(2);
  const upload = new Upload(RECORD, null);
  expect(upload.state.value).toBe("detached");
  const chosen = file();
  expect(upload.matches(chosen, RECORD.directory)).toBe(true);
  expect(upload.matches(chosen, "/other")).toBe(false);
  upload.attach(chosen);
  await upload.run();
  expect(server.now.calls).toEqual(["GET chunks", "part 1", "POST complete"]);
});

test("an upload that has expired at the server begins again", async () => {
  server.now.refuse = (call) => (call === "GET chunks" ? failure(404, "upload_not_found") : null);
  const upload = new Upload(RECORD, null);
  upload.attach(file());
  await upload.run();
  expect(upload.state.value).toBe("done");
  expect(server.now.received.size).toBe(3);
});

test("a pause ends the calls, and a resumed upload first gets what has arrived", async () => {
  const upload = new Upload(RECORD, file());
  server.now.refuse = (call) => {
    if (call === "part 1") upload.pause();
    return null;
  };
  await upload.run();
  expect(upload.state.value).toBe("paused");
  server.now.refuse = () => null;
  upload.resume();
  await upload.run();
  expect(upload.state.value).toBe("done");
  expect(server.now.calls).toContain("GET chunks");
});
