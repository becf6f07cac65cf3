"""What commands have in common: their settings, the database they work on, how they print."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import orjson
import typer

from queryserver.domain.errors import ConfigurationError
from queryserver.settings import Settings, load_settings

T = TypeVar("T")

ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Option("--config", help="The settings file.", metavar="FILE", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode())


def read_password(*, from_stdin: bool) -> str:
    """A new password; at the prompt it is asked for twice."""
    if from_stdin:
        return typer.get_text_stream("stdin").readline().rstrip("\r\n")
    return typer.prompt("Password", hide_input=True, confirmation_prompt=True)


def _log_warnings_only(settings: Settings) -> None:
    from queryserver.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    # A terminal is no place for audit events: without a file of their own they go to the log file of the server.
    told = settings.desktop.logging
    update = {"level": "WARNING", "file": None, "audit_file": told.audit_file or told.file}
    configure_logging(told.model_copy(update=update))


def _with_running_database(settings: Settings) -> Settings:
    from queryserver.embedded.errors import EmbeddedPostgresError  # noqa: PLC0415 most commands need it not
    from queryserver.embedded.running import running_defaults  # noqa: PLC0415 as above
    from queryserver.embedded.settings import with_defaults  # noqa: PLC0415 as above

    try:
        defaults = running_defaults(settings.desktop.data_dir)
    except EmbeddedPostgresError as error:
        raise ConfigurationError([f"desktop.data_dir: {error}"]) from error
    return with_defaults(settings, defaults) if defaults else settings
