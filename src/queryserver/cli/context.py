"""Functions shared by all commands: settings, the embedded database, auditing and output."""

import asyncio
import os
import pwd
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import orjson
import typer

from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loader import PREFIX, load_settings
from queryserver.platform.settings.tree import Settings

T = TypeVar("T")

ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Option("--config", help="Settings file.", metavar="FILE", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoHeader: TypeAlias = Annotated[bool, typer.Option("--no-header", help="Omit the header line.")]
PasswordFromStdin: TypeAlias = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]


def settings_of(config: Path | None) -> Settings:
    """Load the settings for a command. In embedded mode, add the DSN of the running database.

    Also configures logging. Raises ConfigurationError.
    """
    from queryserver.platform.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    settings = load_settings(config, os.environ)
    # Audit events must not appear on a terminal. If no audit file is set, they go to the server's log file.
    logs = settings.desktop.logging
    audit_file = logs.audit_file or logs.file
    configure_logging(
        logs.model_copy(update={"level": "WARNING", "file": None, "audit_file": audit_file, "access_log": False})
    )
    return with_running_database(settings)


def with_running_database(settings: Settings) -> Settings:
    """Add the embedded database's DSN to the settings if no DSN is configured and the database is running.

    Raises ConfigurationError.
    """
    if settings.desktop.database.dsn:
        return settings
    from queryserver.platform.embedded.cluster import EmbeddedPostgresError  # noqa: PLC0415 not needed by most commands
    from queryserver.platform.embedded.postgres import running_resources, with_embedded_resources  # noqa: PLC0415 as below

    try:
        defaults = running_resources(settings.desktop.data_dir)
    except EmbeddedPostgresError as error:
        raise ConfigurationError([f"desktop.data_dir: {error}"]) from error
    return with_embedded_resources(settings, defaults) if defaults else settings


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(work())


def administrate(
    opening: Callable[[Settings], AbstractAsyncContextManager[T]],
    config: Path | None,
    work: Callable[[T], Awaitable[None]],
    operation: str | None = None,
    *subject: str | None,
) -> None:
    """Run `work` on the service that `opening` opens.

    If `operation` is given, the run is audited as that operation on `subject`, for example a user and a group.
    """
    settings = settings_of(config)

    async def opened() -> None:
        async with opening(settings) as service:
            with audited(operation, *subject) if operation else nullcontext():
                await work(service)

    run(opened)


@contextmanager
def audited(operation: str, *subject: str | None) -> Generator[None]:
    """Audit the enclosed block as `operation`, performed by the operating system account that runs the command.

    `subject` contains the names of the changed objects, for example a user and a group.
    """
    from queryserver.platform.logs import AUDIT  # noqa: PLC0415 slow to import

    names = " ".join(name for name in subject if name)
    with AUDIT.event(operator(), operation, names, facts={"by": "command"}):
        yield


def operator() -> str:
    """Return the name of the operating system account that runs this command."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def print_json(value: object) -> None:
    # `default` is for ids from the database, whose class is not the UUID that orjson knows.
    typer.echo(orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())


def printable(text: str) -> str:
    """Escape characters in user text that a terminal cannot print safely, except newlines and tabs."""
    from queryserver.platform.logs import escaped  # noqa: PLC0415 slow to import

    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.splitlines())


def print_listing(
    every: Sequence[object], header: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool, no_header: bool
) -> None:
    """Print all objects as JSON, or as rows: in aligned columns on a terminal, otherwise tab-separated."""
    if as_json:
        print_json(every)
        return
    from queryserver.platform.logs import escaped  # noqa: PLC0415 slow to import

    lines = [] if no_header else [list(header)]
    lines += [[escaped(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in lines:
            typer.echo("\t".join(line))
        return
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())


def read_password(*, from_stdin: bool) -> str:
    """Read a new password. An interactive prompt asks for it twice."""
    if from_stdin:
        return typer.get_text_stream("stdin").readline().rstrip("\r\n")
    return typer.prompt("Password", hide_input=True, confirmation_prompt=True)


def set_setting(key: str, value: object) -> None:
    """Override a setting from the command line, by replacing its environment variable in any letter case."""
    if value is None:
        return
    name = f"{PREFIX}{key}"
    for present in [variable for variable in os.environ if variable.lower() == name]:
        del os.environ[present]
    os.environ[name.upper()] = str(value)
