"""`qs ps`, `qs kill` and `qs history`: list and cancel statements on the server."""

import datetime as dt
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from queryserver_client.cli.failures import WrongUse, say
from queryserver_client.cli.forms import Form
from queryserver_client.cli.output import write_records
from queryserver_client.errors import NotFound, PermissionDenied
from queryserver_client.shares import id_in
from queryserver_client.status import ACTIVE
from queryserver_client.transport import segment

if TYPE_CHECKING:
    from queryserver_client.generated import AdminStatement, AdminStatementsResponse
    from queryserver_client.history import HistoryEntry
    from queryserver_client.sync import Connection

_LOOKED_AT = 1000
"""Number of newest statements that are searched for an id; a user has fewer running statements."""
_NAMES = ["id", "engine", "state", "submitted", "elapsed_s", "rows", "statement"]
_NUMBERS = frozenset({"rows", "elapsed_s", "size", "limit", "used", "left"})
_TIMES = frozenset({"modified", "until", "expires_at", "next_run", "last_run", "due", "ended", "resets_at"})
_WHOLE = frozenset({"id", "submitted", "modified", "size", "permissions", "state", "next_run", "last_run", "due"})
_SHORT_ID = 8
_ID_CHARACTERS = 36


def show_running(db: "Connection", form: Form | None, *, is_all: bool) -> None:
    """Show the user's waiting and running statements; if `is_all` is set, those of all users (administrators)."""
    if is_all:
        names = ["id", "user", "connector", "state", "submitted", "elapsed_s", "rows", "server"]
        records = [
            [
                entry["id"],
                entry["user"],
                entry["connector"],
                entry["state"],
                entry["submitted"],
                _seconds(entry["elapsed_ms"]),
                entry["rows"],
                entry["server"],
            ]
            for entry in _of_all_users(db)
        ]
    else:
        names, records = _NAMES, [_record(entry) for entry in _active(db)]
    show(names, records, form)


def show_history(db: "Connection", form: Form | None, *, text: str, connector: str | None, most: int) -> None:
    """Show the user's newest `most` statements that contain `text`, newest first."""
    show(_NAMES, [_record(entry) for entry in db.history.search(text, dialect=connector, limit=most)], form)


def show_budget(db: "Connection", form: Form | None, user: str | None) -> None:
    """Show the budget of this user for the current UTC day, or that of another user (administrators)."""
    budget = db.users.budget(user)
    records = [
        [name, allowance["limit"], allowance["used"], allowance["left"], budget["resets_at"]]
        for name, allowance in (("engine_s", budget["engine_s"]), ("bytes", budget["bytes"]))
    ]
    show(["budget", "limit", "used", "left", "resets_at"], records, form)


def cancel(db: "Connection", ids: Sequence[str]) -> int:
    """Cancel the statements with these ids or, for active statements, id prefixes. Return the exit code."""
    failures = 0
    for given in ids:
        operation_id = _whole_id(db, given)
        state = None if operation_id is None else _canceled(db, operation_id)
        if state is None:
            failures += 1
            say(f"{given}: no such statement")
        else:
            print(f"{operation_id}  {state}")
    return 1 if failures else 0


def results_of(db: "Connection", given: Sequence[str]) -> "dict[str, str]":
    """Parse arguments of the form `name=id`; return operation ids by name.

    An id may be one that `readable_id` accepts. Raises WrongUse.
    """
    found: dict[str, str] = {}
    for text in given:
        name, sign, wanted = text.partition("=")
        if not (sign and name.isidentifier()):
            raise WrongUse(f"-r {text}: must have the form name=id")
        if name in found:
            raise WrongUse(f"-r {name} is specified twice")
        found[name] = readable_id(db, wanted)
    return found


def stored_id(db: "Connection", given: str) -> str:
    """Return the id of a result; `given` may be a unique prefix of the id of a recent statement. Raises WrongUse."""
    if len(given) == _ID_CHARACTERS:
        return given
    return _only(given, _recent_ids(db, given), "recent statements")


def readable_id(db: "Connection", given: str) -> str:
    """Return the id of a result of this user, or of one that is shared with this user. Raises WrongUse.

    `given` is the id, its link, or a unique prefix of the id.
    """
    given = id_in(given)
    if len(given) == _ID_CHARACTERS:
        return given
    ids = _recent_ids(db, given)
    if not ids:
        ids = _beginning_with(given, (shared.operation_id for shared in db.shared_with_me(limit=_LOOKED_AT)))
    return _only(given, ids, "recent statements or shared results")


def _recent_ids(db: "Connection", given: str) -> list[str]:
    _require_long_enough(given)
    return _beginning_with(given, (entry.operation_id for entry in db.history.search(limit=_LOOKED_AT)))


def _only(given: str, ids: Sequence[str], kind: str) -> str:
    if len(ids) != 1:
        raise WrongUse(f"{given}: {len(ids)} {kind} have this prefix")
    return ids[0]


def show(names: Sequence[str], records: Sequence[Sequence[Any]], form: Form | None) -> None:
    """Print a list in the requested format; by default, a table on a terminal and CSV otherwise."""
    form = form or (Form.TABLE if sys.stdout.isatty() else Form.CSV)
    if form is not Form.TABLE:
        write_records(list(names), [list(record) for record in records], form)
        return
    from queryserver_client.cli.pager import paged  # noqa: PLC0415
    from queryserver_client.cli.tables import print_cells  # noqa: PLC0415
    from queryserver_client.cli.terminal import output_console  # noqa: PLC0415

    rows = [[_shown(name, value) for name, value in zip(names, record, strict=True)] for record in records]
    console = output_console()
    with paged(console):
        print_cells(list(names), [name in _NUMBERS for name in names], rows, console, whole=_WHOLE)
        if not rows:
            console.print("(none)", style="dim")


def _shown(name: str, value: Any) -> Any:
    """Format a cell for users: ids are shortened (`kill` accepts the short form), and times are local."""
    if name == "id":
        return str(value)[:_SHORT_ID]
    if (name == "submitted" or name in _TIMES) and value is not None:
        local = dt.datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone()
        return f"{local:%m-%d %H:%M:%S}" if name == "submitted" else f"{local:%Y-%m-%d %H:%M:%S}"
    if name == "statement":
        return " ".join(str(value).split())
    return "" if value is None else value


def _canceled(db: "Connection", operation_id: str) -> str | None:
    """Cancel a statement and return its new state; None if it does not exist.

    If the user has no such statement, the administrators' call is tried, which cancels statements of any user.
    """
    try:
        return db.statement(operation_id).cancel().state
    except NotFound:
        pass
    path = f"admin/statements/{segment(operation_id)}/cancel"
    try:
        body = db.loop.run(lambda: db.core.transport.call("POST", path, is_repeatable=True, wait_s=30.0))
    except (NotFound, PermissionDenied):
        return None
    return str(body["statement"]["state"])


def _whole_id(db: "Connection", given: str) -> str | None:
    try:
        return str(UUID(given))
    except ValueError:
        pass
    _require_long_enough(given)
    found = _beginning_with(given, (entry.operation_id for entry in _active(db)))
    if not found:
        with suppress(PermissionDenied):
            found = _beginning_with(given, (str(entry["id"]) for entry in _of_all_users(db)))
    if len(found) > 1:
        raise WrongUse(f"{given}: {len(found)} running statements have this prefix")
    return found[0] if found else None


def _require_long_enough(given: str) -> None:
    if len(given) < 4:
        raise WrongUse(f"{given}: specify at least four characters of the id")


def _beginning_with(given: str, ids: "Iterable[str]") -> list[str]:
    return [known for known in ids if known.startswith(given.lower())]


def _active(db: "Connection") -> "list[HistoryEntry]":
    # Older servers ignore `is_active` and return the whole history.
    return [entry for entry in db.history.search(is_active=True, limit=_LOOKED_AT) if entry.state in ACTIVE]


def _of_all_users(db: "Connection") -> "Iterator[AdminStatement]":
    after: int | None = None
    while True:
        params = {"limit": 1000} | ({} if after is None else {"after": after})
        body: AdminStatementsResponse = db.loop.run(
            lambda: db.core.transport.call("GET", "admin/statements", params=params)  # noqa: B023
        )
        yield from body["statements"]
        after = body["next_after"]
        if after is None:
            return


def _record(entry: "HistoryEntry") -> list[Any]:
    elapsed_s = _seconds(entry.elapsed_ms)
    return [
        entry.operation_id,
        entry.dialect,
        entry.state,
        utc_text(entry.recorded),
        elapsed_s,
        entry.rows,
        entry.statement,
    ]


def utc_text(moment: dt.datetime) -> str:
    """Format a time for programs: UTC in ISO 8601."""
    return f"{moment.astimezone(dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 2)
