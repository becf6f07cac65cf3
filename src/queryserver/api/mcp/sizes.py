"""Sizes of answers that go into a model's context window (Contract mcp 3.10)."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

ModelT = TypeVar("ModelT", bound=BaseModel)

ANSWER_BYTES = 24 * 1024
"""The most bytes of JSON that a tool that describes data sources returns: about 8,000 tokens."""
NAME_CHARACTERS = 300
TEXT_CHARACTERS = 300
_ELLIPSIS = "…"


class CompactModel(BaseModel):
    """A model whose JSON omits members that have their default value."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in serialize(self).items()
            if fields[name].is_required() or getattr(self, name) != fields[name].get_default(call_default_factory=True)
        }


def clipped(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return the text, cut to this many characters. A cut text ends with an ellipsis."""
    return text if len(text) <= characters else text[: characters - 1] + _ELLIPSIS


def clipped_bytes(text: str, limit_bytes: int) -> str:
    """Return the longest start of the text that is not longer than this in UTF-8."""
    if len(text) * 4 <= limit_bytes:
        return text
    return text[:limit_bytes].encode(errors="surrogatepass")[:limit_bytes].decode(errors="ignore")


def json_bytes(model: BaseModel) -> int:
    return len(model.model_dump_json().encode())


def fitting(items: Iterable[ModelT], limit_bytes: int, *, limit: int) -> Sequence[ModelT]:
    """Return the first items, at most `limit`, that together are not larger than `limit_bytes` as JSON."""
    shown: list[ModelT] = []
    for item in islice(items, limit):
        limit_bytes -= json_bytes(item) + 1
        if limit_bytes < 0:
            break
        shown.append(item)
    return shown
