"""The commands `schedules list`, `show`, `add`, … (Contract platform 10.7, 12)."""

from collections.abc import Awaitable, Callable, Mapping
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
from queryserver.errors.base import InvalidParameter, QueryServerError
from queryserver.platform.text import parse_json

if TYPE_CHECKING:
    from queryserver.tasks.schedules import Schedules

Id: TypeAlias = Annotated[int, typer.Argument(metavar="ID", help="Number of the schedule.", min=1, max=2**63 - 1)]
File: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="JSON file with an object in the format of the API's `schedule`.")
]

app = typer.Typer(help="Manage schedules of statements and tasks.", no_args_is_help=True)

_PAGE_SIZE = 1000
_HEADER = ("ID", "NAME", "ENABLED", "OWNER", "KIND", "TIMES", "NEXT RUN", "LAST RUN", "LAST STATUS", "RUNS")
_RUN_HEADER = ("DUE", "STATUS", "ENDED", "STATEMENT OR TASK", "MESSAGE")


@app.command("list")
def list_schedules(
    owner: Annotated[str | None, typer.Option(help="Only schedules of this user.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Only enabled or disabled schedules.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    no_header: NoHeader = False,
) -> None:
    """List schedules by name."""

    async def work(schedules: "Schedules") -> None:
        found, number = list[dict[str, Any]](), 1
        while True:
            _, page = await schedules.page(enabled=enabled, owner=owner, page=number, limit=_PAGE_SIZE)
            found += map(_exported, page)
            if len(page) < _PAGE_SIZE:
                break
            number += 1
        print_listing(found, _HEADER, map(_line, found), as_json=as_json, no_header=no_header)

    _administrate(config, work)


@app.command("show")
def show_schedule(schedule_id: Id, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show one schedule."""

    async def work(schedules: "Schedules") -> None:
        _show(_exported(await schedules.get(schedule_id)), as_json=as_json)

    _administrate(config, work)


@app.command("add")
def add_schedule(file: File, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Create a schedule. The file specifies its owner."""
    from queryserver.tasks.schedules import Author  # noqa: PLC0415 slow to import

    fields = _read(file)

    async def work(schedules: "Schedules") -> None:
        made = await schedules.create(Author(operator(), is_user=False), fields.given)
        _show(_exported(made), as_json=as_json)

    _administrate(config, work)


@app.command("update")
def update_schedule(schedule_id: Id, file: File, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Change the fields given in the file. Other fields stay unchanged."""
    fields = _read(file)
    _update(config, schedule_id, fields.given, version=fields.version, as_json=as_json)


@app.command("remove")
def remove_schedule(schedule_id: Id, config: ConfigFile = None) -> None:
    """Delete a schedule. Runs that have already started continue."""
    from queryserver.tasks.schedules import Author  # noqa: PLC0415 slow to import

    async def work(schedules: "Schedules") -> None:
        await schedules.delete(Author(operator(), is_user=False), schedule_id)
        typer.echo(f"Removed {schedule_id}.")

    _administrate(config, work)


@app.command("enable")
def enable_schedule(schedule_id: Id, config: ConfigFile = None) -> None:
    """Enable the schedule."""
    _update(config, schedule_id, {"enabled": True})


@app.command("disable")
def disable_schedule(schedule_id: Id, config: ConfigFile = None) -> None:
    """Disable the schedule."""
    _update(config, schedule_id, {"enabled": False})


@app.command("run")
def run_schedule(schedule_id: Id, config: ConfigFile = None) -> None:
    """Fire the schedule once, immediately, and print the id of the fire."""
    from queryserver.tasks.schedules import Author  # noqa: PLC0415 slow to import

    async def work(schedules: "Schedules") -> None:
        typer.echo(await schedules.run(Author(operator(), is_user=False), schedule_id))

    _administrate(config, work)


@app.command("runs")
def list_runs(
    schedule_id: Id,
    most: Annotated[int, typer.Option("-n", min=1, max=_PAGE_SIZE, help="Maximum number of runs.")] = 20,
    config: ConfigFile = None,
    as_json: AsJson = False,
    no_header: NoHeader = False,
) -> None:
    """List the runs of a schedule, newest first, with the reasons of failures."""
    from queryserver.api.v1.taskserver import run_body  # noqa: PLC0415 slow to import

    async def work(schedules: "Schedules") -> None:
        _, runs = await schedules.runs(schedule_id, page=1, limit=most)
        found = [run_body(run).model_dump() for run in runs]
        print_listing(found, _RUN_HEADER, map(_run_line, found), as_json=as_json, no_header=no_header)

    _administrate(config, work)


def _update(
    config: Path | None,
    schedule_id: int,
    given: Mapping[str, Any],
    *,
    version: int | None = None,
    as_json: bool = False,
) -> None:
    from queryserver.tasks.schedules import Author  # noqa: PLC0415 slow to import

    async def work(schedules: "Schedules") -> None:
        by = Author(operator(), is_user=False)
        _show(_exported(await schedules.update(by, schedule_id, given, version=version)), as_json=as_json)

    _administrate(config, work)


def _read(file: Path) -> Any:
    """Read a schedule's fields from a file and validate them like those of an API call. Raises InvalidParameter."""
    from queryserver.api.schemas.fields import parse  # noqa: PLC0415 slow to import
    from queryserver.api.schemas.requests.platform import ScheduleRequest  # noqa: PLC0415 slow to import

    try:
        content: Any = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameter(f"{file} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, QueryServerError) as error:
        raise InvalidParameter(f"{file} is not valid JSON.") from error
    return parse(ScheduleRequest, {"schedule": content}).schedule


def _exported(found: Any) -> dict[str, Any]:
    """Convert a schedule to the response format of GET taskserver/schedules."""
    from queryserver.api.v1.taskserver import schedule_body  # noqa: PLC0415 slow to import

    return schedule_body(found).model_dump(by_alias=True)


def _line(shown: Mapping[str, Any]) -> tuple[str, ...]:
    times = f"{shown['cron']} {shown['timezone']}" if shown["cron"] else f"every {shown['interval_s']}s"
    return (
        str(shown["id"]),
        shown["name"],
        "yes" if shown["enabled"] else "no",
        shown["owner"],
        shown["kind"],
        times,
        shown["next_run"] or "-",
        shown["last_run"] or "-",
        shown["last_status"] or "-",
        str(shown["total_runs"]),
    )


def _run_line(run: Mapping[str, Any]) -> tuple[str, ...]:
    statement_or_task = run["history_uuid"] or run["task_id"] or "-"
    return run["due"], run["status"] or "running", run["ended"] or "-", statement_or_task, run["message"]


def _show(shown: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        if value is not None:
            typer.echo(f"{name}: {printable(str(value))}")


def _administrate(config: Path | None, work: "Callable[[Schedules], Awaitable[None]]") -> None:
    from queryserver.tasks.build import open_schedules  # noqa: PLC0415 slow to import

    administrate(open_schedules, config, work)
