"""`qs copy`: writes the rows of a statement to a table of any connector, or to a file of a store."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import FAILED, WrongUse, place_of, say, text_of, visible
from queryserver_client.cli.forms import IfExists
from queryserver_client.cli.operations import stored_id
from queryserver_client.cli.stores import is_remote, remote
from queryserver_client.errors import StatementError
from queryserver_client.exports import Export, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryserver_client.sync import Connection

_LAST_LINES = 10


@dataclass(frozen=True)
class Plan:
    """The source, target and options of a copy."""

    source: str
    target: str
    if_exists: IfExists
    database: str | None
    limit: int | None
    timeout: float | None


def copy(db: "Connection", plan: Plan) -> int:
    """Write the rows to the target, and report the outcome. Return the exit code."""
    target, if_exists = _target(plan.target), plan.if_exists.value
    connector, colon, sql = plan.source.partition(":")
    if colon:
        sql = _statement(connector, sql)
    options = {"database": plan.database, "limit": plan.limit, "timeout": plan.timeout}
    if not colon and any(value is not None for value in options.values()):
        raise WrongUse("--database, --limit and --timeout apply to statements, not to stored results")

    def run(**callbacks: Any) -> Export:
        if colon:
            return db.copy(connector, sql, target, if_exists=if_exists, **options, **callbacks)
        return db.statement(stored_id(db, plan.source)).copy(target, if_exists=if_exists, **callbacks)

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


def _outcome(done: Export) -> str:
    rows = "1 row" if done.rows == 1 else f"{done.rows:,} rows"
    if done.table is not None:
        return f"{visible(done.table)}: {rows}"
    files = "" if done.files in (None, 1) else f", {done.files:,} files"
    return f"{visible(done.path or '')}: {rows}{files}, {done.bytes or 0:,} bytes"
