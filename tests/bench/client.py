"""A minimal HTTP client for load tests, which leaves the machine's cores to the measured server."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

_LENGTH = b"content-length: "


class Client:
    """One user's keep-alive connection."""

    def __init__(self, base_url: str, token: str = "", *, local_address: str | None = None) -> None:
        parts = urlsplit(base_url)
        self._local = (local_address, 0) if local_address else None
        self._address = (parts.hostname, parts.port)
        self._head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        self._streams = await asyncio.open_connection(*self._address, limit=64 * 1024 * 1024, local_addr=self._local)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._streams:
            self._streams[1].close()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Send a GET and return the response's status and body."""
        return await self.send(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def post(self, path: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        """Post a form and return the response's status and body."""
        return await self.send(self.form(path, fields))

    async def call(self, name: str, **fields: Any) -> dict[str, Any]:
        """Make an editor call that must succeed and return its body."""
        status, body = await self.post(f"/api/v1/editor/{name}", fields)
        answer = json.loads(body)
        if status != 200 or answer["status"] != 0:
            message = f"{name}: {status} {body[:500]!r}"
            raise AssertionError(message)
        return answer

    def form(self, path: str, fields: Mapping[str, Any]) -> bytes:
        """Encode a form POST as bytes that can be sent many times."""
        return self.form_body(path, urlencode(fields).encode())

    def form_body(self, path: str, body: bytes) -> bytes:
        """Encode a POST whose form body is already encoded."""
        return (
            f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send an encoded request; return the response's status and body."""
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        start = head.find(_LENGTH)
        if start < 0:
            return int(head[9:12]), await _chunked(reader)
        length = int(head[start + len(_LENGTH) : head.index(b"\r\n", start)])
        return int(head[9:12]), await reader.readexactly(length) if length else b""


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body and return only its length, because callers need nothing else."""
    total = 0
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await reader.readexactly(size + 2)
        total += size
    await reader.readuntil(b"\r\n")
    return str(total).encode()
