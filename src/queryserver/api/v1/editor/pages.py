"""A batch of rows as an answer: of fetch_result_data, and of execute with its first rows."""

from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import orjson
from fastapi import Response

from queryserver.api.answers import moment
from queryserver.api.dependencies import Call
from queryserver.api.streaming import OwnedStream
from queryserver.api.v1.editor import shapes
from queryserver.domain.result import CellForm
from queryserver.domain.statement import ACTIVE, StatementState
from queryserver.domain.user import BigNumbers
from queryserver.services.statements.reading import ResultPage

_AT_ONCE_BYTES = 256 * 1024
_NO_ROWS = b'"data":[]'
_SUCCESS: Mapping[str, Any] = MappingProxyType({"status": 0})
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class GivesCells(Protocol):
    """A request whose answer has cells; None: the settings of the server, or those of the user, decide."""

    @property
    def escape(self) -> bool | None:
        """Whether cells are in the form of Hue."""
        ...

    @property
    def big_numbers(self) -> BigNumbers | None:
        """How numbers are written that may have more digits than a double keeps."""
        ...


def cell_form(call: Call, asked: GivesCells) -> CellForm:
    """How the cells of the answer are written."""
    escape = call.services.settings.editor.escape_default if asked.escape is None else asked.escape
    return CellForm(escape, numbers_as_text(call, asked.big_numbers))


def numbers_as_text(call: Call, asked: BigNumbers | None) -> bool:
    """Whether big numbers are text; None: as the user prefers."""
    return (asked or call.user.preferences.big_numbers) == "text"


def page_answer(
    page: ResultPage, form: CellForm, *, beside: Mapping[str, Any] = _SUCCESS, headers: Mapping[str, str] = _NO_HEADERS
) -> Response:
    """The body with the rows in `result` and `beside` around it. A large one is sent in pieces.

    The rows are JSON already: they are never parsed or copied.
    """
    head, tail = _envelope(page, beside, form)
    if page.rendered.size_bytes <= _AT_ONCE_BYTES:
        if page.held is not None:
            page.held.release()
        return Response(head + page.rendered.json + tail, headers=dict(headers), media_type="application/json")
    length = len(head) + page.rendered.size_bytes + len(tail)
    sent = {**headers, "Content-Length": str(length)}
    return OwnedStream(_pieces(head, page, tail), b"", "application/json", sent)


async def _pieces(head: bytes, page: ResultPage, tail: bytes) -> AsyncGenerator[bytes]:
    """The server waits between pieces for its client; meanwhile the page holds its memory."""
    try:
        before = head + b"["
        for piece in page.rendered.pieces:
            yield before
            for start in range(0, len(piece), _AT_ONCE_BYTES):
                yield piece[start : start + _AT_ONCE_BYTES]
            before = b","
        yield b"]" + tail
    finally:
        if page.held is not None:
            page.held.release()


def _envelope(page: ResultPage, beside: Mapping[str, Any], form: CellForm) -> tuple[bytes, bytes]:
    """What stands before and behind the rows."""
    status = page.status
    fields = {
        "has_more": page.has_more,
        "type": "table",
        "isEscaped": form.is_escaped,
        "meta": shapes.plain_meta(page.columns, big_numbers_as_text=form.big_numbers_as_text),
        "data": [],
        "start_row": page.start_row,
        "rows_total": None if status.state in ACTIVE else status.rows,
        **shapes.truncation(status),
        "expires_at": moment(status.expires_at) if status.state is StatementState.AVAILABLE else None,
    }
    if page.message:
        fields["message"] = page.message
    # Within a text of JSON the quotes would have backslashes before them.
    head, mark, tail = orjson.dumps({**beside, "result": fields}).partition(_NO_ROWS)
    return head + mark[:-2], tail
