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
    row_count: int = 0
    """Rows of the answer, or of its segments."""
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
            done, total = self.stats.get("completedSplits"), self.stats.get("totalSplits")
            told = 100 * done / total if isinstance(done, int) and isinstance(total, int) and total > 0 else 0
        return int(max(0, min(100, told)))


def parse(body: bytes, uri: str) -> Page:
    """The page that an answer is. Raises Transient for garbage, such as half a body."""
    try:
        answer = _object(orjson.loads(body))
        data = answer.get("data")
        spooled = data if isinstance(data, dict) else None
        rows = data if isinstance(data, list) else ()
        return Page(
            uri=uri,
            query_id=str(answer["id"]),
            next_uri=_text(answer.get("nextUri")),
            columns=_objects(answer.get("columns")),
            rows=rows,
            spooled=spooled,
            row_count=len(rows) if spooled is None else _rows_in_segments(spooled),
            error=None if answer.get("error") is None else _object(answer["error"]),
            update_type=_text(answer.get("updateType")) or "",
            update_count=None if answer.get("updateCount") is None else int(answer["updateCount"]),
            stats=_object(answer["stats"]),
            warnings=_objects(answer.get("warnings")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Transient("Trino's answer cannot be read.") from error


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise TypeError
    return cast("Json", value)


def _objects(values: Any) -> Sequence[Json]:
    return [_object(one) for one in values or ()]


def _rows_in_segments(spooled: Json) -> int:
    return sum(int(segment["metadata"]["rowsCount"]) for segment in _objects(spooled.get("segments")))
