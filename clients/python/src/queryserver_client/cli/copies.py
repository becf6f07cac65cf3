"""`qs copy`: writes the rows of a statement to a table of any connector, or to a file of a store."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import FAILED, WrongUse, place_of, say, text_of, visible
from queryserver_client.cli.forms import IfExists
from queryserver_client.cli.operations import readable_id
from queryserver_client.cli.parameters import parameters_of
from queryserver_client.cli.stores import is_remote, remote
from queryserver_client.errors import StatementError
from queryserver_client.exports import Export, copy_target, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryserver_client.sync import Connection

_LAST_LINES = 10


@dataclass(frozen=True)
class StatementOptions:
    """Options that apply to statements, but not to stored results."""

    parameters: "Sequence[str] | None"
    database: str | None
    limit: int | None
    timeout: float | None

    def values(self) -> "dict[str, Any]":
        """Return the arguments of `Connection.query`. Raises WrongUse."""
        values = parameters_of(self.parameters or ())
        return {"parameters": values, "database": self.database, "limit": self.limit, "timeout": self.timeout}

    def require_none(self) -> None:
        """Raise WrongUse if an option is given."""
        if self.parameters or any(value is not None for value in (self.database, self.limit, self.timeout)):
            raise WrongUse("--param, --database, --limit and --timeout apply to statements, not to stored results")


@dataclass(frozen=True)
class Plan:
    """The source, target and options of a copy."""

    source: str
    target: str
    if_exists: IfExists
    columns: "Sequence[str] | None"
    allow_truncated: bool
    options: StatementOptions


def copy(db: "Connection", plan: Plan) -> int:
    """Write the rows to the target, and report the outcome. Return the exit code."""
    target, if_exists = _target(plan.target), plan.if_exists.value
    connector, colon, sql = plan.source.partition(":")
    if colon:
        sql = _statement(connector, sql)
    else:
        plan.options.require_none()
    named: dict[str, Any] = {"if_exists": if_exists, "columns": plan.columns}
    options = plan.options.values()

    def run(**callbacks: Any) -> Export:
        if colon:
            return db.copy(connector, sql, target, **named, **options, **callbacks)
        statement = db.statement(readable_id(db, plan.source), allow_truncated=plan.allow_truncated)
        return statement.copy(target, **named, **callbacks)

    return follow(db, run, sql)


def follow(db: "Connection", run: "Callable[..., Export]", sql: str = "") -> int:
    """Run an export with a progress line, and report the outcome. Return the exit code."""
    try:
        if sys.stderr.isatty():
            from queryserver_client.cli.terminal import ProgressLine  # noqa: PLC0415

            waiting = ProgressLine()
            with waiting.shown():
                done = run(on_progress=waiting.on_progress)
        else:
            done = run()
    except StatementError as error:
        say(text_of(error))
        if place := place_of(error, sql):
            print(place, file=sys.stderr)
        return FAILED
    print(_outcome(done))
    for line in db.statement(done.operation_id).logs().lines:
        if line.startswith('Column "'):
            say(visible(line))
    return 0


def _statement(connector: str, sql: str) -> str:
    """Return the statement, which may come from stdin. Raises WrongUse."""
    if sql == "-":
        sql = sys.stdin.read()
    if not connector.strip() or not sql.strip():
        raise WrongUse('the source must have the form CONNECTOR:"SELECT …", or CONNECTOR:- to read the SQL from stdin')
    return sql


def _target(text: str) -> "str | Sequence[str]":
    """Return a path, or the connector, database and table. Raises WrongUse."""
    if is_remote(text):
        return remote(text)
    connector, colon, table = text.partition(":")
    try:
        _, database, name = parts_of(f"{connector}.{table}")
    except ValueError:
        colon = database = name = ""
    if not colon or not connector:
        raise WrongUse(f"{text} is not a target; use connector:table, connector:database.table or store://…")
    return (connector, database, name) if database else (connector, name)


def destination_of(text: str, if_exists: IfExists | None) -> "dict[str, Any]":
    """Return the fields of a destination, which is a path or a table. Raises WrongUse."""
    return copy_target(_target(text), (if_exists or IfExists.ERROR).value)


def _outcome(done: Export) -> str:
    rows = "1 row" if done.rows == 1 else f"{done.rows:,} rows"
    if done.table is not None:
        return f"{visible(done.table)}: {rows}"
    files = "" if done.files in (None, 1) else f" in {done.files:,} files"
    return f"{visible(done.path or '')}: {rows}{files}, {done.bytes or 0:,} bytes"
