"""Commands that run the server and the task server's processes, manage the database schema, and check or create the
settings file.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queryserver.cli.context import ConfigFile, run, set_setting, settings_of, with_running_database
from queryserver.errors.base import ConfigurationError, DatabaseUnavailable
from queryserver.platform.memory import use_common_heap_for_arrow
from queryserver.platform.settings.loader import (
    CONFIG_FILE,
    DEFAULT_FILES,
    as_toml,
    load_settings,
    read_settings,
    sample_file,
)
from queryserver.platform.settings.tree import Level, Settings, SettingsFinding

if TYPE_CHECKING:
    from queryserver.platform.migrations import Schema

app = typer.Typer()

MetricsPort = Annotated[int | None, typer.Option(help="Port for metrics; 0 disables them.", min=0, max=65535)]
WithParent = Annotated[
    bool, typer.Option("--with-parent", hidden=True, help="Also exit when standard input is closed.")
]


@app.command("serve")
def serve(
    config: ConfigFile = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Run a PostgreSQL server in the data directory.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", min=0, max=65535)] = None,
    workers: Annotated[int | None, typer.Option(help="Number of server processes.", min=1)] = None,
    with_workers: Annotated[
        bool, typer.Option("--with-workers", help="Also run a broker, a worker and a beat (requires --embedded).")
    ] = False,
) -> None:
    """Run the server."""
    use_common_heap_for_arrow()
    from queryserver import main  # noqa: PLC0415 takes half a second, which other commands save
    from queryserver.platform.embedded.cluster import EmbeddedPostgresError, EmbeddedPostgresNotInstalled  # noqa: PLC0415 not needed by most commands
    from queryserver.platform.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    # Set through the environment, because worker processes read their own settings.
    set_setting("desktop__http_host", host)
    set_setting("desktop__http_port", port)
    set_setting("desktop__workers", workers)
    if config is not None:
        os.environ[CONFIG_FILE] = str(config)
    settings = load_settings(config, os.environ)
    configure_logging(settings.desktop.logging)
    require_free_address(settings.desktop.http_host, settings.desktop.http_port)
    try:
        main.serve(settings, embedded=embedded, with_workers=with_workers, announce=_print_to_terminal)
    except EmbeddedPostgresNotInstalled as error:
        raise ConfigurationError([f"desktop.database.embedded: {error}"]) from error
    except EmbeddedPostgresError as error:
        raise ConfigurationError([f"desktop.data_dir: {error}"]) from error


@app.command("worker")
def worker(
    config: ConfigFile = None,
    concurrency: Annotated[int | None, typer.Option(help="Number of statements to run concurrently.", min=1)] = None,
    metrics_port: MetricsPort = None,
    with_parent: WithParent = False,
) -> None:
    """Run statements and tasks of the task server until a stop signal arrives."""
    use_common_heap_for_arrow()
    set_setting("desktop__task_server__concurrency", concurrency)
    set_setting("desktop__task_server__metrics_port", metrics_port)
    settings = _task_server_settings(config, "worker", "enabled")
    from queryserver.worker import run_worker  # noqa: PLC0415 takes half a second, which other commands save

    run_worker(settings, with_parent=with_parent)


@app.command("beat")
def beat(config: ConfigFile = None, metrics_port: MetricsPort = None, with_parent: WithParent = False) -> None:
    """Fire schedules when they are due. Several may run at the same time; each fire still runs only once."""
    use_common_heap_for_arrow()
    set_setting("desktop__task_server__metrics_port", metrics_port)
    settings = _task_server_settings(config, "beat", "enabled", "beat_enabled")
    from queryserver.worker import run_beat  # noqa: PLC0415 takes half a second, which other commands save

    run_beat(settings, with_parent=with_parent)


def _task_server_settings(config: Path | None, command: str, *needed: str) -> Settings:
    """Load the settings and configure logging as a server does.

    Raises ConfigurationError if one of the `needed` task server settings is disabled.
    """
    from queryserver.platform.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    settings = load_settings(config, os.environ)
    problems = [
        f"desktop.task_server.{name}: is false, but `queryserver {command}` requires it."
        for name in needed
        if not getattr(settings.desktop.task_server, name)
    ]
    if problems:
        raise ConfigurationError(problems)
    configure_logging(settings.desktop.logging)
    return with_running_database(settings)


def require_free_address(host: str, port: int) -> None:
    """Check that the address is free before anything starts. Raises ConfigurationError with a remedy.

    Names that cannot be resolved are ignored here; the server reports them.
    """
    with suppress(socket.gaierror):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failed = [error for family, *_, address in found if (error := _bind_error(family, address)) is not None]
        taken = [error for error in failed if error.errno in {errno.EADDRINUSE, errno.EACCES}]
        # Some addresses of a name, such as those of localhost, may not exist on this machine; one is enough.
        if taken or len(failed) == len(found):
            error = (taken or failed)[0]
            raise ConfigurationError([_bind_problem(error, host, port)]) from error


def _bind_error(family: int, address: Any) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _bind_problem(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"desktop.http_port: {port} of {host} is already in use, perhaps by another queryserver. Stop"
                " it, or choose another port: `queryserver serve --port NUMBER`, `make run PORT=NUMBER`."
            )
        case errno.EACCES:
            return f"desktop.http_port: permission denied for port {port}. Ports above 1023 need no privileges."
        case errno.EADDRNOTAVAIL:
            return f"desktop.http_host: {host} is not an address of this machine."
        case _:
            return f"desktop.http_host: cannot listen on {host}, port {port}: {error.strerror}."


@app.command("migrate")
def migrate(
    config: ConfigFile = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if a migration is needed.")
    ] = False,
) -> None:
    """Create or upgrade the database schema. Safe to run concurrently."""
    from queryserver.identity.build import open_administration  # noqa: PLC0415 slow to import
    from queryserver.platform import migrations  # noqa: PLC0415 slow to import
    from queryserver.platform.database import required_dsn  # noqa: PLC0415 slow to import

    settings = settings_of(config)
    dsn = required_dsn(settings)

    async def work() -> None:
        present, newest = await migrations.read_schema(dsn), migrations.newest_revision()
        if check:
            is_done = present.is_usable(newest)
            typer.echo(f"Schema version {present.version or 'none'}, newest {newest}.{_compatibility(present, newest)}")
            raise typer.Exit(0 if is_done else 1)
        present = await migrations.migrate(dsn)
        async with open_administration(settings) as accounts:
            await accounts.ensure_default_group()
        typer.echo(f"Schema version {present.version}.{_compatibility(present, newest)}")

    run(work)


def _compatibility(present: "Schema", newest: str) -> str:
    """Explain what the schema version means for other program versions, for example during an upgrade."""
    from queryserver.platform import migrations  # noqa: PLC0415 slow to import

    version = present.version
    if version is None or version == newest:
        return ""
    if version > newest:
        text = "this release is compatible with it" if present.is_usable(newest) else "this release cannot use it"
        return f" The schema belongs to a newer release; {text}."
    oldest = migrations.oldest_program()
    if oldest <= version:
        return f" Releases with schema version {oldest} or newer can use it: servers may be replaced one by one."
    return " Running servers cannot use the new schema: the service is interrupted until they are replaced."


@app.command("is_db_alive")
def is_db_alive(config: ConfigFile = None) -> None:
    """Exit with 0 if the service database responds, else with 1."""
    from queryserver.platform.database import open_database, required_dsn  # noqa: PLC0415 slow to import

    settings = settings_of(config)
    dsn = required_dsn(settings)

    async def work() -> None:
        async with open_database(dsn, settings.desktop.database) as database:
            await database.value("select 1")

    try:
        run(work)
    except DatabaseUnavailable as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(1) from error


@app.command("openapi")
def openapi() -> None:
    """Print the OpenAPI description of the API."""
    typer.echo(files("queryserver.api").joinpath("openapi.json").read_text(encoding="utf-8"), nl=False)


@app.command("version")
def version() -> None:
    """Print the version."""
    from queryserver import __version__  # noqa: PLC0415 needed only here

    typer.echo(__version__)


def print_version(requested: bool) -> None:
    """Print the version and exit if the option `--version` is given."""
    if requested:
        version()
        raise typer.Exit


def _print_to_terminal(text: str) -> None:
    """Print to the terminal instead of the log."""
    sys.stdout.write(f"\n{text}\n\n")
    sys.stdout.flush()


configuration_app = typer.Typer(help="Check the settings, or create a settings file.", no_args_is_help=True)


@configuration_app.command("check")
def check(
    config: ConfigFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact other services.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Also print all effective values with their origin.")
    ] = False,
) -> None:
    """Print all problems and warnings in the settings. Exit with 3 if there is a problem."""
    from queryserver.administration.configuration_check import check_settings  # noqa: PLC0415 slow to import

    reading = read_settings(config, os.environ)
    found = [
        *map(SettingsFinding.of_problem, reading.problems),
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


@configuration_app.command("init")
def init(config: ConfigFile = None) -> None:
    """Write a commented settings file that contains every key. An existing file is never overwritten."""
    file, text = config or DEFAULT_FILES[0], sample_file()
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        typer.echo(f"{file}: {error.strerror}.", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{file} written.")


def _missing_database(settings: Settings) -> Iterator[SettingsFinding]:
    """Report a missing DSN, except in embedded mode, which is recognized by its setting or its files in `data_dir`."""
    database = settings.desktop.database
    is_embedded = database.embedded or (settings.desktop.data_dir / "postgresql").is_dir()
    if database.dsn is None and not is_embedded:
        yield SettingsFinding.error(
            "desktop.database.url", "is required unless the server runs with `serve --embedded`."
        )
