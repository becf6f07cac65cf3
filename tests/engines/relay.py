"""A byte relay between a TCP port and a Unix socket.

It connects a network namespace with the host, because the two share only files.

python relay.py tcp:127.0.0.1:4000 unix:/tmp/door      outside: accepts TCP connections, connects to the socket
python relay.py unix:/tmp/door tcp:127.0.0.1:14001     inside: accepts connections from the socket
"""

import asyncio
import sys
from contextlib import suppress

_CHUNK_BYTES = 262_144


async def listen(address: str, target: str) -> None:
    """Relay connections until the process is killed."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await connect(target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(passed_on(reader, far_writer), passed_on(far_reader, writer))

    kind, _, place = address.partition(":")
    if kind == "unix":
        server = await asyncio.start_unix_server(accept, place)
    else:
        host, _, port = place.rpartition(":")
        server = await asyncio.start_server(accept, host, int(port))
    async with server:
        await server.serve_forever()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    kind, _, place = address.partition(":")
    if kind == "unix":
        return await asyncio.open_unix_connection(place)
    host, _, port = place.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes until either side closes its connection."""
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(listen(*sys.argv[1:]))
