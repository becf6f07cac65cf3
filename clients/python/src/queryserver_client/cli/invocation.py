"""Options that several commands have, and how commands run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from queryserver_client.cli.forms import Form

if TYPE_CHECKING:
    from queryserver_client.sync import Connection

AllowTruncated = Annotated[bool, typer.Option("--allow-truncated", help="Accept a result that the server truncated.")]
AnyForm = Annotated[
    Form | None, typer.Option("-o", "--output", help="Output format. Default: a table on a terminal, otherwise csv.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Force = Annotated[bool, typer.Option("-f", "--force", help="Replace existing files.")]
GoOn = Annotated[bool, typer.Option("-c", "--continue", help="Skip files that already exist with the same size.")]
Groups = Annotated[list[str] | None, typer.Option("-g", "--group", help="Name of a group; may be repeated.")]
MaxEstimatedBytes = Annotated[
    int | None,
    typer.Option(
        "--max-estimated-bytes", min=1, help="Do not run the statement if the data source expects to read more bytes."
    ),
]
MostRows = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of rows. Default: all.")]
Parameter = Annotated[
    list[str] | None,
    typer.Option(
        "-p", "--param", help="name=value for :name, or a value for ?. A type may be added: name:date=2024-01-31."
    ),
]
Paths = Annotated[list[str], typer.Argument(metavar="SOURCE... TARGET", help="Local paths, store://… or :/….")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Refuse statements that would change anything.")]
Recursive = Annotated[bool, typer.Option("-r", "--recursive", help="Include directories with their contents.")]
ResultId = Annotated[str, typer.Argument(help="Id of a result, or its first characters.")]
StatementDatabase = Annotated[str | None, typer.Option("-d", "--database", help="Database of the statement.")]
TimeLimit = Annotated[float | None, typer.Option("--timeout", min=1, help="Time limit in seconds.")]
Users = Annotated[list[str] | None, typer.Option("-u", "--user", help="Name of a user; may be repeated.")]


def carry_out(command: "Callable[[], int | None]") -> None:
    """Run a command that needs no server, and exit with its code."""
    from queryserver_client.cli.failures import carried_out  # noqa: PLC0415

    raise typer.Exit(carried_out(command))


def connected(command: "Callable[[Connection], int | None]") -> None:
    """Run a command that needs a server and a login, and exit with its code."""

    def run() -> int | None:
        from queryserver_client.cli.login import open_connection  # noqa: PLC0415

        with open_connection() as db:
            return command(db)

    carry_out(run)
