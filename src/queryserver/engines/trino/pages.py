"""One answer of the client protocol: where the statement is, and some of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from queryserver.engines.trino.errors import Transient

_WAITING = frozenset({"QUEUED", "WAITING_FOR_RESOURCES", "WAITING_FOR_PREREQUISITES", "DISPATCHING"})
_TELLTALE_COLUMNS = frozenset({("rows", "bigint"), ("result", "boolean")})

Json = Mapping[str, Any]


def _nothing() -> Json:
    return {}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. `uri` gives the same page again until `next_uri` is asked for."""

    uri: str
    query_id: str
    next_uri: str | None
    columns: Sequence[Json] = ()
    rows: Sequence[Sequence[Any]] = ()
    spooled: Json | None = None
    """Encoding and segments, where the rows are not in the answer itself."""
    error: Json | None = None
    update_type: str = ""
    update_count: int | None = None
    stats: Json = field(default_factory=_nothing)
    warnings: Sequence[Json] = ()

    @property
    def has_rows(self) -> bool:
        return bool(self.rows) or bool(self.spooled and self.spooled.get("segments"))

    @property
    def is_waiting(self) -> bool:
        """Whether the statement is in the engine's own queue."""
        return self.stats.get("state") in _WAITING

    @property
    def changes_only(self) -> bool:
        """Whether the statement has no result set of its own: Trino gives its count or `true` as a row."""
        if not self.update_type:
            return False
        described = [(column.get("name"), column.get("type")) for column in self.columns]
        return len(described) == 0 or (len(described) == 1 and described[0] in _TELLTALE_COLUMNS)

    @property
    def progress(self) -> int:
        """0 to 100."""
        told = self.stats.get("progressPercentage")
        if not isinstance(told, int | float):
            total = self.stats.get("totalSplits") or 0
            told = 100 * (self.stats.get("completedSplits") or 0) / total if total else 0
        return max(0, min(100, int(told)))


def parse(body: bytes, uri: str) -> Page:
    """The page that an answer is. Raises Transient for garbage, such as half a body."""
    try:
        answer = cast("Json", orjson.loads(body))
        data = answer.get("data")
        return Page(
            uri=uri,
            query_id=str(answer["id"]),
            next_uri=_text(answer.get("nextUri")),
            columns=answer.get("columns") or (),
            rows=data if isinstance(data, list) else (),
            spooled=data if isinstance(data, dict) else None,
            error=answer.get("error"),
            update_type=_text(answer.get("updateType")) or "",
            update_count=answer.get("updateCount"),
            stats=answer["stats"],
            warnings=answer.get("warnings") or (),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Transient("Trino's answer cannot be read.") from error


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value
