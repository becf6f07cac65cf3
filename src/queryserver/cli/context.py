"""What commands have in common: their settings, the database they work on, the audit, how they print."""

import asyncio
import os
import pwd
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import orjson
import typer

from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loading import load_settings
from queryserver.platform.settings.tree import Settings

T = TypeVar("T")

ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Option("--config", help="The settings file.", metavar="FILE", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoHeader: TypeAlias = Annotated[bool, typer.Option("--no-header", help="Leave the header line out.")]
PasswordFromStdin: TypeAlias = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]


def settings_of(config: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings for a command that works beside a server: in the embedded mode with the database that runs.

    Raises ConfigurationError.
    """
    settings = load_settings(config, os.environ, overrides=overrides)
    _log_warnings_only(settings)
    return settings if settings.desktop.database.dsn else _with_running_database(settings)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do the asynchronous part of a command."""
    return asyncio.run(work())


def administrate(
    opening: Callable[[Settings], AbstractAsyncContextManager[T]],
    config: Path | None,
    work: Callable[[T], Awaitable[None]],
    operation: str | None = None,
    *subject: str | None,
) -> None:
    """Do `work` with the service that `opening` opens.

    With an `operation` it is a change of `subject`, such as a user and a group, and leaves an audit event.
    """
    settings = settings_of(config)

    async def opened() -> None:
        async with opening(settings) as service:
            with audited(operation, *subject) if operation else nullcontext():
                await work(service)

    run(opened)


@contextmanager
def audited(operation: str, *subject: str | None) -> Generator[None]:
    """One audit event for what a command does inside, in the name of whoever runs it.

    `subject` are the names that it is about, such as a user and a group.
    """
    from queryserver.platform.logs import AUDIT, AuditTrail  # noqa: PLC0415 as above

    names = " ".join(name for name in subject if name)
    with AuditTrail(AUDIT).event(operator(), operation, names, facts={"by": "command"}):
        yield


def operator() -> str:
    """The account of the operating system that runs this command."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())


def printable(text: str) -> str:
    """The text of a user for a terminal: of what does not print, lines and tabs stay and the rest is escaped."""
    from queryserver.platform.logs import escaped  # noqa: PLC0415 as above

    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.splitlines())


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, with_header: bool = True) -> None:
    """A listing: aligned columns on a terminal, else columns separated by tabs."""
    from queryserver.platform.logs import escaped  # noqa: PLC0415 as above

    lines = [list(header)] if with_header else []
    lines += [[escaped(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in lines:
            typer.echo("\t".join(line))
        return
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())


def read_password(*, from_stdin: bool) -> str:
    """A new password; at the prompt it is asked for twice."""
    if from_stdin:
        return typer.get_text_stream("stdin").readline().rstrip("\r\n")
    return typer.prompt("Password", hide_input=True, confirmation_prompt=True)


def _log_warnings_only(settings: Settings) -> None:
    from queryserver.platform.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    # A terminal is no place for audit events: without a file of their own they go to the log file of the server.
    told = settings.desktop.logging
    audit_file = told.audit_file or told.file
    update = {"level": "WARNING", "file": None, "audit_file": audit_file, "access_log": False}
    configure_logging(told.model_copy(update=update))


def _with_running_database(settings: Settings) -> Settings:
    from queryserver.platform.embedded.cluster import EmbeddedPostgresError  # noqa: PLC0415 most commands need it not
    from queryserver.platform.embedded.postgres import (  # noqa: PLC0415 as below
        running_defaults,
        with_defaults,
    )

    try:
        defaults = running_defaults(settings.desktop.data_dir)
    except EmbeddedPostgresError as error:
        raise ConfigurationError([f"desktop.data_dir: {error}"]) from error
    return with_defaults(settings, defaults) if defaults else settings
