"""A TCP proxy between a client and its server. It can cut connections and hold back responses."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_CHUNK_BYTES = 65_536
_END_OF_STREAM = b"0\r\n\r\n"


@dataclass(frozen=True)
class Cut:
    """Ends a connection after this many bytes of its requests or responses."""

    of_requests: int | None = None
    of_answers: int | None = None


@dataclass
class Proxy:
    """A proxy that can cut connections and hold back responses.

    Each new connection uses the next item of `cuts`. Connections are no longer cut when there are no items left.
    """

    url: str = ""
    cuts: deque[Cut] = field(default_factory=deque)
    holds_events: bool = False
    """Whether an event stream is held back until it ends."""
    holds_answers_after: int | None = None
    """If it is set, all responses are held back after clients have sent this many bytes in total
    (`requested_bytes`).
    """
    held_answers: int = 0
    """Number of connections whose responses are held back."""
    connections: int = 0
    requested_bytes: int = 0
    """Number of request bytes forwarded on all connections."""
    answered_bytes: int = 0
    """Number of response bytes forwarded on all connections."""


@asynccontextmanager
async def proxy(target: str) -> AsyncGenerator[Proxy]:
    """Start a proxy for the server at the URL `target`."""
    parts, made, tasks = urlsplit(target), Proxy(), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        cut = made.cuts.popleft() if made.cuts else Cut()
        try:
            far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            writer.transport.abort()
            return
        ways = {
            asyncio.create_task(_pass_requests(made, reader, far_writer, cut.of_requests)),
            asyncio.create_task(_pass_answers(made, far_reader, writer, cut.of_answers)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            far_writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # The connection is also closed if the task is canceled before it starts, or while it connects.
        task.add_done_callback(lambda _: writer.transport.abort())

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_requests(
    made: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int | None
) -> None:
    passed = 0
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            whole = chunk if max_bytes is None else chunk[: max_bytes - passed]
            passed += len(whole)
            made.requested_bytes += len(whole)
            writer.write(whole)
            await writer.drain()
            if len(whole) < len(chunk):
                return


async def _pass_answers(
    made: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int | None
) -> None:
    passed, held = 0, b""
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            if made.holds_answers_after is not None and made.requested_bytes >= made.holds_answers_after:
                made.held_answers += 1
                await asyncio.Event().wait()  # the client's disconnect cancels this task
            chunk = held + chunk
            if made.holds_events and b"text/event-stream" in chunk and not chunk.endswith(_END_OF_STREAM):
                held = chunk
                continue
            held = b""
            whole = chunk if max_bytes is None else chunk[: max_bytes - passed]
            passed += len(whole)
            made.answered_bytes += len(whole)
            writer.write(whole)
            await writer.drain()
            if len(whole) < len(chunk):
                return
