"""A page of rows as the response of a call."""

from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any

import orjson
from fastapi import Response

from queryserver.api import responses
from queryserver.api.v1.editor.shapes import plain_meta, truncation
from queryserver.formats.columns import CellForm
from queryserver.identity.model import BigNumbers, User
from queryserver.platform.settings.tree import Settings
from queryserver.statements.result_reader import ResultPage
from queryserver.statements.states import ACTIVE, StatementState

_AT_ONCE_BYTES = 256 * 1024
_NO_ROWS = b'"data":[]'
_SUCCESS: Mapping[str, Any] = MappingProxyType({"status": 0})
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def cell_form(user: User, settings: Settings, escape: bool | None, big_numbers: BigNumbers | None) -> CellForm:
    """How cells are written. The settings of user and server apply where the call does not specify it."""
    if escape is None:
        escape = settings.editor.escape_default
    return CellForm(escape, numbers_as_text(user, big_numbers))


def numbers_as_text(user: User, big_numbers: BigNumbers | None) -> bool:
    """Whether big numbers are text: as requested by the call, else as the user prefers."""
    return (big_numbers or user.preferences.big_numbers) == "text"


def page_answer(
    page: ResultPage, form: CellForm, *, beside: Mapping[str, Any] = _SUCCESS, headers: Mapping[str, str] = _NO_HEADERS
) -> Response:
    """The body with the rows in `result`, and the fields `beside`. A large body is sent in chunks.

    The rows are JSON already: they are never parsed or copied.
    """
    head, tail = _around_rows(page, beside, form)
    if page.rendered.size_bytes <= _AT_ONCE_BYTES:
        if page.reservation is not None:
            page.reservation.release()
        return Response(head + page.rendered.json + tail, headers=dict(headers), media_type="application/json")
    length = len(head) + page.rendered.size_bytes + len(tail)
    sent = {**headers, "Content-Length": str(length)}
    return responses.OwnedStream(_pieces(head, page, tail), b"", "application/json", sent)


async def _pieces(head: bytes, page: ResultPage, tail: bytes) -> AsyncGenerator[bytes]:
    """The page keeps its memory while the server waits for the client between chunks."""
    try:
        before = head + b"["
        for piece in page.rendered.pieces:
            yield before
            for start in range(0, len(piece), _AT_ONCE_BYTES):
                yield piece[start : start + _AT_ONCE_BYTES]
            before = b","
        yield b"]" + tail
    finally:
        if page.reservation is not None:
            page.reservation.release()


def _around_rows(page: ResultPage, beside: Mapping[str, Any], form: CellForm) -> tuple[bytes, bytes]:
    status, has_more, message = page.status, page.has_more, page.message
    fields = {
        "has_more": has_more,
        "type": "table",
        "isEscaped": form.is_escaped,
        "meta": plain_meta(page.columns, big_numbers_as_text=form.big_numbers_as_text),
        "data": [],
        "start_row": page.start_row,
        "rows_total": None if status.state in ACTIVE else status.rows,
        **truncation(status),
        "expires_at": responses.utc_text(status.expires_at) if status.state is StatementState.AVAILABLE else None,
    }
    if message:
        fields["message"] = message
    # inside a JSON string the quotes would be escaped
    head, mark, tail = orjson.dumps({**beside, "result": fields}).partition(_NO_ROWS)
    return head + mark[:-2], tail
