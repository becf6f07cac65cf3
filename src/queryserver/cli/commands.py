"""The command line application, with all commands and their exit codes."""

import sys
from typing import Annotated

import typer

from queryserver.cli import cleanup, connectors, doctor, schedules, server, statements, users
from queryserver.errors.base import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidRequest,
    QueryServerError,
    SchemaMismatch,
)

DONE, FAILED, WRONG_USAGE, NOT_USABLE = 0, 1, 2, 3
"""The exit codes of all commands."""

app = typer.Typer(
    name="queryserver",
    help="SQL on any engine over HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for module in (server, doctor, users, cleanup):
    app.add_typer(module.app)
app.add_typer(server.configuration_app, name="config")
app.add_typer(connectors.app, name="connector")
app.add_typer(users.authentication_app, name="auth")
app.add_typer(users.tokens_app, name="token")
app.add_typer(statements.app, name="statements")
app.add_typer(schedules.app, name="schedules")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=server.print_version)
    ] = False,
) -> None:
    """SQL on any engine over HTTP."""
    del version


def main() -> None:
    """Run the command in `sys.argv` and exit with its exit code."""
    try:
        app()
    except QueryServerError as error:
        for line in error.message.splitlines():
            typer.echo(f"error {line}" if isinstance(error, ConfigurationError) else line, err=True)
        if isinstance(error, ConfigurationError | SchemaMismatch | DatabaseUnavailable):
            sys.exit(NOT_USABLE)
        sys.exit(WRONG_USAGE if isinstance(error, InvalidRequest) else FAILED)
