"""The commands `statements list`, `show` and `stop`, for the statements of all users (Contract platform 12).

The commands in `cli/cleanup.py` close statements and sessions by age.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from queryserver.cli.context import (
    AsJson,
    ConfigFile,
    NoHeader,
    administrate,
    operator,
    print_json,
    print_listing,
    printable,
)
from queryserver.statements.states import MAX_AGE_S, StateFilter

if TYPE_CHECKING:
    from queryserver.statements.overview import OverviewEntry, StatementAdministration

app = typer.Typer(help="List, show and stop statements of all users.", no_args_is_help=True)

Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the statement.", show_default=False)]

_MILLISECOND = timedelta(milliseconds=1)
_HEADER = ("ID", "STATE", "USER", "CONNECTOR", "SUBMITTED", "QUEUED", "RUNNING", "ROWS", "SERVER")


@app.command("list")
def list_statements(
    user: Annotated[str | None, typer.Option(help="Only statements of this user.")] = None,
    connector: Annotated[str | None, typer.Option(help="Only statements on the connector with this id.")] = None,
    state: Annotated[
        StateFilter, typer.Option(help="Waiting and running statements (active), all statements, or one state.")
    ] = StateFilter.ACTIVE,
    older_than_s: Annotated[
        int | None, typer.Option(help="Only statements submitted at least this many seconds ago.", min=0, max=MAX_AGE_S)
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of statements, newest first.", min=1, max=100_000)] = 100,
    config: ConfigFile = None,
    as_json: AsJson = False,
    no_header: NoHeader = False,
) -> None:
    """List statements, newest first. By default, only waiting and running statements are listed."""
    from queryserver.statements.overview import OverviewFilter  # noqa: PLC0415 slow to import

    older_than = None if older_than_s is None else timedelta(seconds=older_than_s)
    chosen = OverviewFilter(state.states, user, connector, older_than)

    async def work(statements: "StatementAdministration") -> None:
        page, following = await statements.page(chosen, limit=limit)
        every = [_exported(entry) for entry in page]
        print_listing(every, _HEADER, map(_line, page), as_json=as_json, no_header=no_header)
        if following is not None and not as_json:
            typer.echo(f"There are more than {limit} statements; increase --limit to list them.", err=True)

    _administrate(config, work)


@app.command("show")
def show_statement(statement_id: Id, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show a statement with its text. The access is audited."""

    async def work(statements: "StatementAdministration") -> None:
        found = await statements.details(_parsed(statement_id), by=operator())
        further = {
            "database": found.database,
            "message": found.message,
            "row_limit": found.row_limit,
            "timeout_s": found.timeout_s,
            "deadline": found.deadline,
            "text_is_cut": found.text_is_cut,
            "text": found.statement,
        }
        shown = {**_exported(found.entry), **further}
        if as_json:
            print_json(shown)
            return
        for name, value in shown.items():
            if value is not None and name != "text":
                typer.echo(f"{name}: {_moment(value) if isinstance(value, datetime) else printable(str(value))}")
        typer.echo(f"\n{printable(found.statement)}")

    _administrate(config, work)


@app.command("stop")
def stop_statement(
    statement_id: Id,
    wait_s: Annotated[int, typer.Option("--wait", help="Seconds to wait for the end of the statement.", min=0)] = 15,
    config: ConfigFile = None,
) -> None:
    """Cancel a statement. Exit with 1 if its end is not confirmed in time."""

    async def work(statements: "StatementAdministration") -> None:
        entry = await statements.stop(_parsed(statement_id), by=operator(), wait_s=wait_s)
        if not entry.state.is_terminal:
            typer.echo(
                f"{entry.id}: cancellation was requested, but the statement did not end within {wait_s} s.", err=True
            )
            raise typer.Exit(1)
        typer.echo(f"{entry.id}: {entry.state}")

    _administrate(config, work)


def _parsed(statement_id: str) -> Any:
    from queryserver.statements.status import parse_operation_id  # noqa: PLC0415 slow to import

    return parse_operation_id(statement_id)


def _line(entry: "OverviewEntry") -> tuple[str, ...]:
    times = entry.times
    return (
        str(entry.id),
        f"{entry.state}, cancel requested"
        if entry.cancel_requested and not entry.state.is_terminal
        else str(entry.state),
        entry.user,
        entry.connector,
        _moment(times.submitted),
        _seconds(times.queued),
        _seconds(times.elapsed) if times.started else "-",
        str(entry.rows),
        entry.server or "-",
    )


def _exported(entry: "OverviewEntry") -> dict[str, Any]:
    """Convert a statement to the response format of GET admin/statements."""
    plain = asdict(entry)
    size_bytes = plain.pop("size_bytes")
    del plain["times"]
    times = entry.times
    moments = {"submitted": times.submitted, "started": times.started, "ended": times.ended}
    lengths = {"elapsed_ms": times.elapsed // _MILLISECOND, "queued_ms": times.queued // _MILLISECOND}
    # orjson cannot serialize asyncpg's UUID class.
    return {**plain, "id": str(entry.id), "bytes": size_bytes, **moments, **lengths}


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():.1f}s"


def _administrate(config: Path | None, work: "Callable[[StatementAdministration], Awaitable[None]]") -> None:
    from queryserver.statements.build import open_statements  # noqa: PLC0415 slow to import

    administrate(open_statements, config, work)
