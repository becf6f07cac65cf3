"""What engines without lengths before their values read at a time: bodies of HTTP, chunks of DBAPI cursors."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import httpx
import pytest
from tests.cases import each

from queryserver.engines.phoenix import connection as phoenix_http
from queryserver.engines.phoenix.connection import Route
from queryserver.engines.sqlalchemy.connection import SqlalchemyAnswer
from queryserver.engines.statement_texts import BATCH_BYTES
from queryserver.engines.trino import coordinator as trino_http
from queryserver.errors.statements import RowTooLarge
from queryserver.platform.addresses import AddressRules

MIB = 1024 * 1024


class Endless(httpx.AsyncByteStream):
    """A body that counts its pieces."""

    pieces = 0
    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.pieces += 1
            yield bytes(MIB)

    async def aclose(self) -> None:
        self.is_closed = True


async def test_a_trino_page_is_not_read_beyond_its_limit() -> None:
    body = Endless()
    request = httpx.Request("GET", "http://trino/v1/statement")
    with pytest.raises(RowTooLarge):
        await trino_http._whole(httpx.Response(200, stream=body, request=request), request, 16 * MIB)
    assert (body.pieces, body.is_closed) == (65, True)


async def test_a_phoenix_frame_is_not_read_beyond_its_limit() -> None:
    body = Endless()
    request = httpx.Request("POST", "http://phoenix/")
    with pytest.raises(RowTooLarge):
        await phoenix_http._whole(httpx.Response(200, stream=body, request=request), Route("::1", None), 8 * MIB)
    assert (body.pieces, body.is_closed) == (9, True)


class Cursor:
    """A DBAPI cursor over rows of given widths."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = list(widths)
        self.largest = 0

    def fetchmany(self, count: int) -> list[tuple[str]]:
        taken, self._widths = self._widths[:count], self._widths[count:]
        self.largest = max(self.largest, sum(taken))
        return [("x" * width,) for width in taken]


class Dialect:
    """A SQLAlchemy dialect by its name."""

    name = "any"


class Connection:
    """A SQLAlchemy connection that is not used."""

    dialect = Dialect()


@each(
    ("widths", "most_bytes"),
    ([10] * 1000, BATCH_BYTES),
    ([10 * MIB] * 8, 10 * MIB),
    # Sixteen rows are fetched at once when the first wide one comes, and fewer after it.
    ([10] * 127 + [2 * MIB] * 100, 32 * MIB),
    ([3 * MIB] + [10] * 500, BATCH_BYTES),
)
def test_a_chunk_of_a_cursor_ends_soon_after_it_is_large(widths: list[int], most_bytes: int) -> None:
    answer = SqlalchemyAnswer(cast("Any", Connection()), cast("Any", None), AddressRules())
    cursor = answer.cursor = Cursor(widths)
    seen: list[int] = []
    while rows := answer._fetched():
        seen += [len(text) for (text,) in rows]
    assert seen == widths
    assert cursor.largest <= most_bytes
