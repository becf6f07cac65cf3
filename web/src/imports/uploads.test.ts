import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { session } from "../app/session.ts";
import { discardUpload } from "./uploads.ts";

const SOURCE = { importType: "local", path: "upload/x/a.csv", name: "a.csv", sizeBytes: 1 } as const;
let sent: Request[] = [];

function answering(...responses: Response[]) {
  vi.stubGlobal("fetch", async (request: Request) => {
    sent.push(request);
    return responses.shift() ?? Response.error();
  });
}

const inUse = () => Response.json({ error: "In use.", code: "file_in_use" }, { status: 400 });
const discarded = () => Response.json({ status: 0, discarded: true });

beforeEach(() => {
  vi.useFakeTimers();
  sent = [];
  session.begin({ access: "qst_abc" });
});

afterEach(() => {
  session.accessToken.value = null;
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("an upload that an import reads is discarded when the import has ended", async () => {
  answering(inUse(), inUse(), discarded());
  void discardUpload(SOURCE);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(sent).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(600_000);
  expect(sent).toHaveLength(3);
});

test("an upload is not discarded for another session, and files of stores never are", async () => {
  answering(inUse(), discarded());
  void discardUpload(SOURCE);
  await vi.advanceTimersByTimeAsync(1_000);
  session.accessToken.value = null;
  await vi.advanceTimersByTimeAsync(600_000);
  expect(sent).toHaveLength(1);
  await discardUpload({ ...SOURCE, importType: "remote", path: "s3a://lake/a.csv" });
  expect(sent).toHaveLength(1);
});

test("a failed call is not repeated", async () => {
  answering(Response.json({ error: "Away.", code: "database_unavailable" }, { status: 500 }));
  await discardUpload(SOURCE);
  await vi.advanceTimersByTimeAsync(600_000);
  expect(sent).toHaveLength(1);
});
