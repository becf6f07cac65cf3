"""JSON as clients may send it (Contract platform 1.2): strict, and with bounded nesting."""

import json
from typing import Any, NoReturn

from queryserver.domain.errors import InvalidJson

MAX_DEPTH = 64


def read_json(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value that `text` holds.

    Raises InvalidJson when it does not parse, nests deeper than `max_depth`, repeats a key, or holds NaN or Infinity.
    16 MiB take 10 ms as one long text and 3 s as small objects: bodies above some KiB belong into a thread.
    """
    try:
        source = text.decode() if isinstance(text, bytes) else text
        value = _DECODER.decode(source)
    except (ValueError, RecursionError):
        message = "The text is not valid JSON."
        raise InvalidJson(message) from None
    # Fewer brackets than the limit cannot nest above it; nearly every request ends here.
    if source.count("[") + source.count("{") > max_depth and _is_deeper(value, max_depth):
        message = f"The JSON text is nested deeper than {max_depth} levels."
        raise InvalidJson(message)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        message = "repeated key"
        raise ValueError(message)
    return members


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is no JSON"
    raise ValueError(message)


def _is_deeper(value: Any, depth: int) -> bool:
    """Level by level, so that a deep value costs no stack. A value without members has depth 0 or 1."""
    level = [value]
    for _ in range(depth):
        level = [child for container in level for child in _children(container)]
    return bool(level)


def _children(value: Any) -> list[Any]:
    """The members of a container that may have members themselves; the value itself is level one."""
    if isinstance(value, dict):
        return [child for child in value.values() if isinstance(child, dict | list)]
    return [child for child in value if isinstance(child, dict | list)] if isinstance(value, list) else []


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
