"""The commands of `qs schedule`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from queryserver_client.cli.forms import IfExists, OptionalField, Outcome, Overlap
from queryserver_client.cli.invocation import AnyForm, AsJson, Parameter, connected

schedules = typer.Typer(
    name="schedule", no_args_is_help=True, help="Run statements and saved queries at set times; for administrators."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
Schedule = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Name or number of a schedule.")]
SeveralSchedules = Annotated[list[str], typer.Argument(metavar="SCHEDULE...", help="Names or numbers of schedules.")]
Statement = Annotated[str | None, typer.Argument(help="Statement or script; - reads it from stdin.")]
File = Annotated[Path | None, typer.Option("-f", "--file", help="Read the statement from a file.")]
Document = Annotated[
    str | None, typer.Option("--document", metavar="DOCUMENT", help="Name or uuid of a saved query to run.")
]
Task = Annotated[str | None, typer.Option("--task", help="Name of a maintenance task to run, with -p.")]
Connector = Annotated[str | None, typer.Option("-c", "--connector", help="Default: that of the saved query.")]
Database = Annotated[str | None, typer.Option("-d", "--database")]
Into = Annotated[
    str | None,
    typer.Option("--into", help="Send the rows to store://…, :/… or connector:table. {date} and {time} are the run's."),
]
IfTargetExists = Annotated[
    IfExists | None, typer.Option("--if-exists", help="Action if the table or file exists. Default: error.")
]
Cron = Annotated[str | None, typer.Option("--cron", help="Minute, hour, day, month, weekday: '30 2 * * *'.")]
Every = Annotated[str | None, typer.Option("--every", help="Interval between runs: 90s, 15m, 12h or 7d.")]
TimeZone = Annotated[str | None, typer.Option("--timezone", help="Of --cron, such as Europe/Berlin.")]
WhileRunning = Annotated[
    Overlap | None, typer.Option("--overlap", help="Action if the previous run is in progress. Default: skip.")
]
Until = Annotated[str | None, typer.Option("--until", help="End of the schedule: 12h, 7d or a time.")]
Owner = Annotated[str | None, typer.Option("--owner", help="User as whom it runs. Default: you.")]
Mail = Annotated[list[str] | None, typer.Option("--mail", help="Email address to notify; may be repeated.")]
Webhook = Annotated[str | None, typer.Option("--webhook", help="URL to notify.")]
NotifyOn = Annotated[list[Outcome] | None, typer.Option("--on", help="Notify of these outcomes only.")]
AttachCsv = Annotated[bool, typer.Option("--attach-csv", help="Attach the rows to emails.")]


@schedules.command("add")
def add_schedule(
    name: Name,
    statement: Statement = None,
    file: File = None,
    document: Document = None,
    task: Task = None,
    parameter: Parameter = None,
    connector: Connector = None,
    database: Database = None,
    into: Into = None,
    if_exists: IfTargetExists = None,
    cron: Cron = None,
    every: Every = None,
    timezone: TimeZone = None,
    overlap: WhileRunning = None,
    until: Until = None,
    owner: Owner = None,
    mail: Mail = None,
    webhook: Webhook = None,
    on: NotifyOn = None,
    attach_csv: AttachCsv = False,
    paused: Annotated[bool, typer.Option("--paused", help="Do not run it until qs schedule resume.")] = False,
) -> None:
    """Create a schedule, and print its number and next time."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    fields: dict[str, Any] = {
        "connector": connector, "database": database, "cron": cron, "timezone": timezone, "overlap": overlap,
        "owner": owner, "enabled": False if paused else None,
    }  # fmt: skip
    work = command.Work(statement, file, document, task, parameter, into, if_exists)
    notice = command.Notice(mail, webhook, on, attach_csv)
    connected(lambda db: command.add(db, name, command.Changes(work, notice, every, until, fields)))


@schedules.command("change")
def change_schedule(
    schedule: Schedule,
    statement: Statement = None,
    file: File = None,
    document: Document = None,
    task: Task = None,
    parameter: Parameter = None,
    connector: Connector = None,
    database: Database = None,
    into: Into = None,
    if_exists: IfTargetExists = None,
    cron: Cron = None,
    every: Every = None,
    timezone: TimeZone = None,
    overlap: WhileRunning = None,
    until: Until = None,
    owner: Owner = None,
    mail: Mail = None,
    webhook: Webhook = None,
    on: NotifyOn = None,
    attach_csv: AttachCsv = False,
    name: Annotated[str | None, typer.Option("--name", help="New name.")] = None,
    unset: Annotated[
        list[OptionalField] | None, typer.Option("--unset", help="Remove this field; may be repeated.")
    ] = None,
) -> None:
    """Change what is given; everything else stays as it is."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    fields: dict[str, Any] = {
        "connector": connector, "database": database, "cron": cron, "timezone": timezone, "overlap": overlap,
        "owner": owner, "name": name,
    }  # fmt: skip
    work = command.Work(statement, file, document, task, parameter, into, if_exists)
    notice = command.Notice(mail, webhook, on, attach_csv)
    changes = command.Changes(work, notice, every, until, fields, unset or ())
    connected(lambda db: command.change(db, schedule, changes))


@schedules.command("list")
def list_schedules(
    owner: Annotated[str | None, typer.Option("--owner", help="Only schedules of this user.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--paused", help="Only schedules that are enabled, or paused.")
    ] = None,
    output: AnyForm = None,
) -> None:
    """List schedules by name."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.show_list(db, output, owner=owner, is_enabled=enabled))


@schedules.command("show")
def show_schedule(schedule: Schedule, as_json: AsJson = False) -> None:
    """Show a schedule and the outcome of its last run."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.show_schedule(db, schedule, as_json=as_json))


@schedules.command("run")
def run_schedule(schedule: Schedule) -> None:
    """Run a schedule now, also if it is paused, and print the id of the run."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.run(db, schedule))


@schedules.command("runs")
def list_runs(
    schedule: Schedule,
    most: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Maximum number of runs.")] = 20,
    output: AnyForm = None,
) -> None:
    """List the runs of a schedule, newest first, with the id of each statement."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.show_runs(db, schedule, output, most=most))


@schedules.command("pause")
def pause_schedules(names: SeveralSchedules) -> None:
    """Stop schedules from running at their times."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.pause(db, names))


@schedules.command("resume")
def resume_schedules(names: SeveralSchedules) -> None:
    """Let schedules run at their times again, and print their next times."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.resume(db, names))


@schedules.command("delete")
def delete_schedules(names: SeveralSchedules) -> None:
    """Delete schedules. Runs that have already started continue."""
    from queryserver_client.cli import schedules as command  # noqa: PLC0415

    connected(lambda db: command.delete(db, names))
