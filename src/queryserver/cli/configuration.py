"""`config check` and `config init`."""

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from queryserver.cli.context import ConfigFile, run
from queryserver.domain.findings import Finding, Level
from queryserver.settings import Settings
from queryserver.settings.loading import DEFAULT_FILES, read_settings
from queryserver.settings.report import as_toml, sample_file

app = typer.Typer(help="Check the settings, or begin a settings file.", no_args_is_help=True)


@app.command("check")
def check(
    config: ConfigFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Try nothing that the settings name.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Print all effective values with their origin too.")] = False,
) -> None:
    """Print all problems and warnings; exit 3 when there is a problem."""
    from queryserver.container.checking import check_settings  # noqa: PLC0415 slow to import

    reading = read_settings(config, os.environ)
    found = [
        *map(Finding.of_problem, reading.problems),
        *_missing_database(reading.settings),
        *run(lambda: check_settings(reading.settings, offline=offline)),
    ]
    for finding in sorted(dict.fromkeys(found), key=lambda one: one.level):
        typer.echo(str(finding))
    if not found:
        typer.echo("No problems.")
    if values:
        typer.echo(f"\n{as_toml(reading.settings).strip()}")
    raise typer.Exit(3 if any(finding.level is Level.ERROR for finding in found) else 0)


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


def _missing_database(settings: Settings) -> Iterator[Finding]:
    """The embedded mode needs no address; that it is meant shows by the setting or by what it left in the directory."""
    database = settings.desktop.database
    is_embedded = database.embedded or (settings.desktop.data_dir / "postgresql").is_dir()
    if database.dsn is None and not is_embedded:
        yield Finding.error("desktop.database.url", "must be given, unless the server runs with `serve --embedded`.")
