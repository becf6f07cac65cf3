"""`config check` and `config init`."""

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from queryserver.cli.context import ConfigFile, run
from queryserver.domain.errors import ConfigurationError, DatabaseUnavailable, SchemaMismatch
from queryserver.settings import Settings
from queryserver.settings.contradictions import warnings
from queryserver.settings.loading import DEFAULT_FILES, read_settings
from queryserver.settings.report import as_toml
from queryserver.settings.sample import sample_file

app = typer.Typer(help="Check the settings, or begin a settings file.", no_args_is_help=True)


@app.command("check")
def check(
    config: ConfigFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not try the database and the result store.")] = False,
) -> None:
    """Print all effective values with their origin, then all problems and warnings."""
    reading = read_settings(config, os.environ)
    problems = [*reading.problems, *_missing_database(reading.settings), *_missing_root(reading.settings)]
    typer.echo(as_toml(reading.settings))
    if not problems and not offline:
        problems = run(lambda: _tried(reading.settings))
    for problem in problems:
        typer.echo(f"error {problem}")
    for key, text in warnings(reading.settings):
        typer.echo(f"warning {key}: {text}")
    raise typer.Exit(3 if problems else 0)


@app.command("init")
def init(config: ConfigFile = None) -> None:
    """Write a settings file in which every key is explained; never over one that exists."""
    file, text = config or DEFAULT_FILES[0], sample_file()
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        typer.echo(f"{file}: {error.strerror}.", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{file} written.")


def _missing_database(settings: Settings) -> Iterator[str]:
    """The embedded mode needs no address; that it is meant shows by the setting or by what it left in the directory."""
    database = settings.desktop.database
    is_embedded = database.embedded or (settings.desktop.data_dir / "postgresql").is_dir()
    if database.dsn is None and not is_embedded:
        yield "desktop.database.url: must be given, unless the server runs with `serve --embedded`."


def _missing_root(settings: Settings) -> Iterator[str]:
    from queryserver.container.storages.file import problems_of  # noqa: PLC0415 slow to import

    yield from problems_of(settings)


async def _tried(settings: Settings) -> list[str]:
    """What does not work although it is well written."""
    from queryserver.container.connectors import configured_connectors  # noqa: PLC0415 slow to import
    from queryserver.container.records import open_records  # noqa: PLC0415 as above

    if settings.desktop.database.dsn is None:
        return []
    try:
        configured_connectors(settings)
        async with open_records(settings) as kept:
            await kept.results.ping()
    except ConfigurationError as error:
        return error.problems
    except (DatabaseUnavailable, SchemaMismatch) as error:
        return [f"desktop.database: {error.message}"]
    return []
