"""The commands close_queries, close_sessions, cleanup and rotate-keys (Contract platform 12)."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from queryserver.cli.context import AsJson, ConfigFile, print_json, run, settings_of
from queryserver.platform.settings.tree import Settings

if TYPE_CHECKING:
    from queryserver.statements.build import StoredRecords
    from queryserver.statements.retention import CloseReport


app = typer.Typer()

_CENTURY_DAYS = 36_500

Age: TypeAlias = Annotated[
    int,
    typer.Argument(
        metavar="AGE_IN_DAYS", min=0, max=_CENTURY_DAYS, help="Minimum days since the last use; 0 closes all."
    ),
]


@app.command("close_queries")
def close_queries(age_in_days: Age = 7, config: ConfigFile = None) -> None:
    """Close results that no client has used for this many days."""

    async def work(stored: "StoredRecords") -> None:
        typer.echo(f"Closing queries older than {age_in_days} days...")
        done = await stored.retention.close_queries(timedelta(days=age_in_days))
        for query, text in done.failed.items():
            typer.echo(f"Info: {query} {text}")
        typer.echo(f"{done.closed} queries closed. {done.already_closed} queries already closed.")
        _fail_for(done)

    _sweep(settings_of(config), work)


@app.command("close_sessions")
def close_sessions(
    age_in_days: Age,
    dialect: Annotated[str, typer.Argument(metavar="DIALECT", help="A dialect, a connector or `all`.")],
    config: ConfigFile = None,
) -> None:
    """Close sessions that no client has used for this many days."""
    from queryserver.connectors.repository import matching_keys  # noqa: PLC0415 slow to import

    settings = settings_of(config)

    async def work(stored: "StoredRecords") -> None:
        connectors = await matching_keys(settings, stored.database, dialect)
        if connectors == []:
            typer.echo(f"Unknown dialect: {dialect}", err=True)
            raise typer.Exit(1)
        typer.echo(f"Closing {dialect} sessions older than {age_in_days} days...")
        done = await stored.retention.close_sessions(connectors, timedelta(days=age_in_days))
        found = done.closed + done.already_closed + done.in_use + len(done.failed)
        typer.echo(f"Found {found} open sessions to close")
        for session, text in done.failed.items():
            typer.echo(f"Session with ID {session} could not be closed: {text}")
        typer.echo(
            f"{done.closed} sessions closed. {done.already_closed} sessions skipped because already closed. "
            f"{done.in_use} sessions skipped because in use."
        )
        _fail_for(done)

    _sweep(settings, work)


@app.command("desktop_document_cleanup", hidden=True)
@app.command("cleanup")
def cleanup(
    keep_days: Annotated[
        int, typer.Option(min=0, max=_CENTURY_DAYS, help="Days of history to retain; 0 deletes all of it.")
    ] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Delete old history, expired results, expired tokens and similar records."""

    async def work(stored: "StoredRecords") -> None:
        counts = await stored.retention.clean_up(history=timedelta(days=keep_days), dry_run=dry_run)
        if as_json:
            print_json(dict(counts))
            return
        verb = "would be deleted" if dry_run else "deleted"
        for kind, count in counts.items():
            typer.echo(f"{kind}: {count} {verb}")

    _sweep(settings_of(config), work, with_stores=True)


@app.command("rotate-keys")
def rotate_keys(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Re-encrypt all secrets with the current key, so that former keys can be removed."""
    from queryserver.connectors.build import rotate_keys as rotate  # noqa: PLC0415 slow to import

    settings = settings_of(config)
    rotation = run(lambda: rotate(settings))
    if as_json:
        print_json({"connectors": rotation.connectors, "others": rotation.others, "lost": rotation.lost})
    else:
        typer.echo(f"Re-encrypted the secrets of {rotation.connectors} connectors and {rotation.others} other secrets.")
    if rotation.lost:
        typer.echo(f"{rotation.lost} secrets cannot be decrypted: their key is not in the settings.", err=True)
        raise typer.Exit(1)


def _fail_for(done: "CloseReport") -> None:
    if done.failed:
        raise typer.Exit(1)


def _sweep(
    settings: Settings, work: "Callable[[StoredRecords], Awaitable[None]]", *, with_stores: bool = False
) -> None:
    """Run `work` on the stored records. `with_stores` adds the clean-up steps of the other packages."""
    from queryserver.documents.build import trash_sweep  # noqa: PLC0415 slow to import
    from queryserver.files.build import open_stores, orphan_sweep  # noqa: PLC0415 slow to import
    from queryserver.imports.build import open_upload_area  # noqa: PLC0415 slow to import
    from queryserver.platform.ownership import Ownership  # noqa: PLC0415 slow to import
    from queryserver.statements.build import open_records  # noqa: PLC0415 slow to import
    from queryserver.tasks.build import task_records  # noqa: PLC0415 slow to import

    async def opened() -> None:
        async with AsyncExitStack() as stack:
            stored = await stack.enter_async_context(open_records(settings))
            if with_stores:
                stores = await stack.enter_async_context(open_stores(settings))
                ownership = Ownership(stored.database, lease=settings.editor.lease_timeout)  # sends no heartbeats
                stored.retention.add_clean_up_step(orphan_sweep(stored.database, stores, ownership).clean_up)
                area = await stack.enter_async_context(open_upload_area(settings, stored.database))
                stored.retention.add_clean_up_step(area.clean_up)
                stored.retention.add_clean_up_step(task_records(settings, stored.database).clean_up)
                stored.retention.add_clean_up_step(trash_sweep(settings, stored.database))
            await work(stored)

    run(opened)
