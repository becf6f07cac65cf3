"""Tasks that schedules start: their names, their parameters and the row that queues one (Contract platform 10.6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from queryserver.errors.base import InvalidParameter
from queryserver.platform.database import Connection


@dataclass(frozen=True, slots=True)
class _Whole:
    """A parameter that is a whole number; without default it is required."""

    least: int
    default: int | None = None


@dataclass(frozen=True, slots=True)
class _Word:
    """A parameter that is a text, and required."""


_TASKS: Mapping[str, Mapping[str, _Whole | _Word]] = {
    "document_cleanup": {"keep_days": _Whole(1, 30)},
    "result_cleanup": {},
    "upload_cleanup": {"older_than_minutes": _Whole(10, 60)},
    "close_queries": {"age_in_days": _Whole(0, 7)},
    "close_sessions": {"age_in_days": _Whole(0), "dialect": _Word()},
    "metadata_refresh": {"connector": _Word()},
}
_MOST = 36_500


def checked_task(name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of the task of that name, with defaults. Raises InvalidParameter."""
    known = _TASKS.get(name)
    if known is None:
        raise InvalidParameter(f"schedule.task must be one of {', '.join(_TASKS)}.")
    for unknown in params.keys() - known.keys():
        raise InvalidParameter(f"schedule.params: {name} has no parameter {unknown[:100]}.")
    return {key: _checked(key, kind, params.get(key)) for key, kind in known.items()}


async def queue_task(connection: Connection, name: str, params: Mapping[str, Any], owner_id: int) -> UUID:
    """The id of a task that begins to wait with the commit of the transaction."""
    task_id = uuid4()
    await connection.execute(
        "insert into tasks (id, name, params, owner_id) values ($1, $2, $3, $4)", task_id, name, dict(params), owner_id
    )
    return task_id


def _checked(key: str, kind: _Whole | _Word, value: Any) -> Any:
    if isinstance(kind, _Word):
        if not isinstance(value, str) or not value.strip():
            raise InvalidParameter(f"schedule.params.{key} is required and must be text.")
        return value
    value = kind.default if value is None else value
    if type(value) is not int or not kind.least <= value <= _MOST:
        raise InvalidParameter(f"schedule.params.{key} must be an integer from {kind.least} to {_MOST}.")
    return value
