import { beforeEach, expect, test, vi } from "vitest";
import { answers, events, serve, statusOf } from "./testing.ts";

const BROKEN = {
  "without an event": () => new Response("retry: 2000\n\n", { headers: { "Content-Type": "text/event-stream" } }),
  "cut in its first event": () => new Response('event: status\ndata: {"status": 0, "query_st'),
  "with an event that is no JSON": () => new Response("event: status\ndata: <html>\n\n"),
  "that is a page of a proxy": () => new Response("<html>Bad Gateway</html>", { status: 200 }),
};

// Each test begins in a page that has not met a broken stream.
beforeEach(() => vi.resetModules());

test.each(Object.entries(BROKEN))("the status is polled if each stream is one %s", async (_name, stream) => {
  const { follow } = await import("./follow.ts");
  const calls = serve({
    "editor/events": stream,
    "editor/get_logs": answers(Response.json({ status: 0, progress: 100, jobs: [], logs: "", next_from: 0 })),
    "editor/check_status": answers(Response.json({ status: 0, query_status: statusOf("available") })),
  });
  const states: string[] = [];
  const ignored = () => undefined;
  const follower = {
    ...{ onProgress: ignored, onLog: ignored, onConnection: ignored, isWaiting: () => false },
    onStatus: ({ state }: { state: string }) => states.push(state),
  };
  await follow("0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10", follower, AbortSignal.timeout(8000));
  expect(states).toEqual(["available"]);
  expect(calls.filter(({ path }) => path.includes("events")).length).toBeLessThan(3);
});

test("a single stream without an event is tried again", async () => {
  const { follow } = await import("./follow.ts");
  const calls = serve({
    "editor/events": answers(
      BROKEN["without an event"](),
      events(["end", { status: 0, query_status: statusOf("available") }]),
    ),
  });
  const ignored = () => undefined;
  const follower = { onStatus: ignored, onProgress: ignored, onLog: ignored, onConnection: ignored };
  await follow("id", { ...follower, isWaiting: () => false }, AbortSignal.timeout(8000));
  expect(calls.map(({ path }) => path)).toEqual(["editor/events/id", "editor/events/id"]);
});
