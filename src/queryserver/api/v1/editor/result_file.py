"""A download: one result in one file format for one caller (Contract editor 8.2)."""

from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import Response

from queryserver.api import responses
from queryserver.files.downloads import Conditions, Part, Version, only_part, requested_part
from queryserver.formats.download.encoder import ContentCoding, FileForm
from queryserver.formats.download.packed import PackedStream
from queryserver.formats.download.stream import download as encode
from queryserver.identity.limits import Streams
from queryserver.identity.model import User
from queryserver.statements.downloads import Downloads, StoredRows


@dataclass(frozen=True, slots=True)
class ResultSender:
    """Sends files to one caller. Files are encoded in `threads`."""

    user: User
    downloads: Downloads
    streams: Streams
    threads: Executor


class ResultFile:
    """A result in one format, being sent to one caller."""

    def __init__(
        self, sender: ResultSender, rows: StoredRows, form: FileForm, stored: PackedStream | None, *, headers_only: bool
    ) -> None:
        """`stored`: its bytes, if they exist already; then the size is known and parts can be read directly.

        `headers_only`: no body is sent.
        """
        self._sender = sender
        self._headers_only = headers_only
        self._rows = rows
        self._form = form
        self._stored = stored
        tag = form.entity_tag(rows.status.id) if stored is None else stored.entity_tag(rows.status.id)
        self.version = Version(tag)

    async def whole(self) -> Response:
        if self._stored is not None:
            headers = {"Content-Length": str(self._stored.size_bytes)}
            if self._headers_only:
                described = self.version_headers | self._description | headers
                return Response(media_type=self._form.format.content_type, headers=described)
            return await self._answer(self._pieces(), headers, 200)
        return await self._answer(self._kept_size(self._pieces()), {}, 200)

    async def part(self, conditions: Conditions) -> Response:
        """The requested part. A file of unknown size is encoded twice. Raises RangeNotSatisfiable."""
        part = requested_part(conditions, self.version, await self._size())
        if part.is_whole:
            return await self.whole()
        headers = {"Content-Range": part.content_range, "Content-Length": str(part.length)}
        pieces = self._pieces(part) if self._stored is not None else only_part(self._pieces(), part)
        return await self._answer(pieces, headers, 206)

    async def _size(self) -> int:
        if self._stored is not None:
            return self._stored.size_bytes
        sender = self._sender
        return await sender.downloads.size_of(sender.user, self._rows.status.id, self.version.tag, self._pieces())

    @property
    def version_headers(self) -> dict[str, str]:
        return {"ETag": self.version.tag, "Vary": "Accept-Encoding"}

    async def _answer(self, pieces: AsyncGenerator[bytes], headers: dict[str, str], status: int) -> Response:
        audited = self._sender.downloads.audited(self._sender.user, self._rows.status.id, pieces)
        described = self.version_headers | self._description | headers
        return await responses.stream(
            audited, media_type=self._form.format.content_type, headers=described, status=status
        )

    async def _pieces(self, part: Part | None = None) -> AsyncGenerator[bytes]:
        """The whole file, or a part of a stored one."""
        sender = self._sender
        with sender.streams.slot(sender.user) as slot:
            if self._stored is not None:
                file = self._stored.pieces(part.start, part.length) if part else self._stored.pieces()
            else:
                file = encode(self._rows, self._form, threads=sender.threads)
            async with aclosing(file) as pieces:
                async for piece in pieces:
                    await slot.recheck(lambda user: sender.downloads.require(user, self._rows.status))
                    yield piece

    async def _kept_size(self, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Passes the chunks on and remembers their total size, which makes a later range request cheaper."""
        size = 0
        async with aclosing(pieces):
            async for piece in pieces:
                size += len(piece)
                yield piece
        self._sender.downloads.sizes.put(self.version.tag, size)

    @property
    def _description(self) -> dict[str, str]:
        status, form = self._rows.status, self._form
        reason = status.truncated_reason
        headers = {
            "Accept-Ranges": "bytes",
            "Content-Disposition": f'attachment; filename="query-{status.history_id}.{form.format.value}"',
            "X-Result-Rows": str(status.rows),
            "X-Result-Truncated": "true" if reason else "false",
        }
        if form.coding is not ContentCoding.IDENTITY:
            headers["Content-Encoding"] = form.coding.value
        return headers | ({"X-Result-Truncated-Reason": reason.value} if reason else {})
