"""Spooled results: pages that name segments of rows instead of holding them (protocol: spooling)."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
import orjson

from queryserver.domain.errors.statements import EngineError, OutcomeUnknown
from queryserver.engines.trino.coordinator import Coordinator
from queryserver.engines.trino.errors import Transient, check_status, given_up
from queryserver.engines.trino.http import body_limit, insist
from queryserver.formats.zstandard import unpack_zstandard

_PIECE_BYTES = 1024 * 1024
_ACCEPTED = {"Accept-Encoding": "identity"}
_ROW_BORDER = b"],["

Rows = Sequence[Sequence[Any]]


async def segment_rows(coordinator: Coordinator, spooled: Mapping[str, Any], skip: int) -> AsyncIterator[Rows]:
    """The rows of a page in order, but for the first `skip`.

    A segment is given up at the engine when the rows after it are asked for: until then it can be read again.
    Raises OutcomeUnknown.
    """
    loop = asyncio.get_running_loop()
    encoding = str(spooled.get("encoding"))
    for segment in spooled["segments"]:
        count = int(segment["metadata"]["rowsCount"])
        if skip >= count:
            skip -= count
        else:
            text = await _content(coordinator, encoding, segment)
            for piece in await loop.run_in_executor(coordinator.executor, partial(_cut, text)):
                rows: Rows = await loop.run_in_executor(coordinator.executor, orjson.loads, piece)
                if skip < len(rows):
                    yield rows[skip:]
                skip = max(skip - len(rows), 0)
        await _acknowledge(coordinator, segment)


async def _content(coordinator: Coordinator, encoding: str, segment: Mapping[str, Any]) -> bytes:
    """The segment as JSON text. Raises OutcomeUnknown."""
    if segment["type"] == "inline":
        raw = b64decode(segment["data"])
    else:
        raw = await _download(coordinator, segment)
    if encoding == "json":
        return raw
    if encoding != "json+zstd":
        raise OutcomeUnknown(f"Trino's result has an unknown encoding: {encoding[:50]}.")
    unpack = partial(_decompress, raw, body_limit(coordinator.address.cell_max_bytes))
    return await asyncio.get_running_loop().run_in_executor(coordinator.executor, unpack)


async def _download(coordinator: Coordinator, segment: Mapping[str, Any]) -> bytes:
    """The bytes of a segment. Where it is kept is told by the coordinator; our login goes only to the coordinator."""
    place = _url(segment["uri"])

    async def attempt() -> bytes:
        answer = await coordinator.http.send("GET", place, _headers(segment))
        check_status(answer.status, answer.body)
        return answer.body

    try:
        return await insist(attempt, for_s=coordinator.address.patience.retry_s)
    except Transient as error:
        raise given_up(error, sent=True) from error


async def _acknowledge(coordinator: Coordinator, segment: Mapping[str, Any]) -> None:
    """Let the engine delete the segment; it does so by itself after a while."""
    if segment.get("ackUri"):
        with suppress(Transient, EngineError, TimeoutError):
            async with asyncio.timeout(coordinator.address.patience.stop_s):
                await coordinator.http.send("GET", _url(segment["ackUri"]), _headers(segment))


def _url(text: str) -> httpx.URL:
    """Raises OutcomeUnknown."""
    try:
        return httpx.URL(text)
    except httpx.InvalidURL as error:
        raise OutcomeUnknown("Trino's answer cannot be read.") from error


def _headers(segment: Mapping[str, Any]) -> httpx.Headers:
    entries = [(name, value) for name, values in (segment.get("headers") or {}).items() for value in values]
    return httpx.Headers([*_ACCEPTED.items(), *entries])


def _decompress(raw: bytes, max_bytes: int) -> bytes:
    try:
        text = bytes(unpack_zstandard(raw, max_bytes=max_bytes))
    except ValueError as error:
        raise OutcomeUnknown("A segment of Trino's result cannot be unpacked.") from error
    if len(text) > max_bytes:
        raise OutcomeUnknown("A segment of Trino's result is too large.")
    return text


def _cut(text: bytes) -> Sequence[bytes]:
    """A JSON array of arrays as several: reading a large one holds the interpreter, and so the event loop.

    A cut is right when what is before it is JSON: within a text or a nested array it is not.
    """
    pieces, start, end = list[bytes](), 0, text.find(_ROW_BORDER, _PIECE_BYTES)
    while end >= 0:
        piece = (b"[" if start else b"") + text[start : end + 1] + b"]"
        try:
            orjson.loads(piece)
        except ValueError:
            end = text.find(_ROW_BORDER, end + 1)
            continue
        pieces.append(piece)
        start = end + 2
        end = text.find(_ROW_BORDER, start + _PIECE_BYTES)
    pieces.append((b"[" if start else b"") + text[start:])
    return pieces
