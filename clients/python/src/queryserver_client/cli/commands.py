"""The `qs` commands. Each command imports its dependencies when it runs, so `qs --help` does not load HTTP or Arrow."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from queryserver_client.cli.document_commands import documents
from queryserver_client.cli.forms import FileKind, IfExists
from queryserver_client.cli.invocation import (
    AllowTruncated,
    AnyForm,
    AsJson,
    Force,
    GoOn,
    Groups,
    MaxEstimatedBytes,
    MostRows,
    Parameter,
    Paths,
    ReadOnly,
    Recursive,
    ResultId,
    StatementDatabase,
    TimeLimit,
    Users,
    carry_out,
    connected,
)
from queryserver_client.cli.logs import print_logs
from queryserver_client.cli.schedule_commands import schedules
from queryserver_client.cli.signals import end_in_order

app = typer.Typer(
    name="qs",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rendering plain help takes only a third of the time
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 success, 1 failure, 2 usage error, 3 not logged in, 4 result truncated, "
        "5 server unreachable, 130 interrupted, 143 terminated. "
        "QUERYSERVER_URL with QUERYSERVER_TOKEN takes precedence over the login stored by qs login."
    ),
)
app.add_typer(documents)
app.add_typer(documents, name="saved", help="The same as `qs documents`.")
app.add_typer(schedules)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from queryserver_client import __version__  # noqa: PLC0415

        typer.echo(f"qs {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[  # noqa: ARG001 its callback prints it
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
    no_pager: Annotated[
        bool, typer.Option("--no-pager", help="Print long output directly, not in $PAGER (by default less).")
    ] = False,
) -> None:
    """Run SQL, manage files and import tables on a queryserver."""
    if no_pager:
        from queryserver_client.cli import pager  # noqa: PLC0415

        pager.switch(is_on=False)


@app.command()
def login(
    url: Annotated[
        str | None, typer.Argument(help="Address of the server, https://….", envvar="QUERYSERVER_URL")
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user")] = None,
    token: Annotated[bool, typer.Option("--token", help="Store an API token instead of logging in.")] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Log in with a browser at the server's login issuer, on any device.")
    ] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password or the token from stdin.")] = False,
) -> None:
    """Log in and store the tokens, never the password, for later commands."""
    from queryserver_client.cli import sessions  # noqa: PLC0415

    carry_out(lambda: sessions.log_in(url, user, is_token=token, is_device=device, is_piped=stdin))


@app.command()
def logout() -> None:
    """Revoke the stored login on the server and delete it."""
    from queryserver_client.cli import sessions  # noqa: PLC0415

    carry_out(sessions.log_out)


@app.command()
def sql(
    connector: Annotated[str, typer.Argument(help="Id, key or dialect of the connector.")],
    statement: Annotated[
        str | None,
        typer.Argument(help="SQL statement or script. Default: read from stdin, or open a prompt on a terminal."),
    ] = None,
    values: Annotated[list[str] | None, typer.Argument(help="Values for the ? markers, in order.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the SQL from a file.")] = None,
    parameter: Parameter = None,
    result: Annotated[
        list[str] | None,
        typer.Option(
            "-r", "--result", help="name=id: use the result with this id as the table {name} in the SQL (DuckDB)."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the result on the server, and print its id.")] = False,
    database: Annotated[str | None, typer.Option("-d", "--database")] = None,
    output: AnyForm = None,
    to: Annotated[Path | None, typer.Option("--to", help="Write to a file, in the format of its suffix.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of rows. Default: the server's limit.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Time limit of the statement in seconds.")] = None,
    max_age: Annotated[
        int | None,
        typer.Option(min=0, help="Use a stored result of the same query that is at most so many seconds old."),
    ] = None,
    read_only: ReadOnly = False,
    max_estimated_bytes: MaxEstimatedBytes = None,
    expanded: Annotated[
        bool, typer.Option("-x", "--expanded", help="Print each cell on its own line, without truncation.")
    ] = False,
) -> None:
    """Run SQL and print its result, or open a prompt."""
    from queryserver_client.cli import sql as command  # noqa: PLC0415

    given: dict[str, Any] = {
        "connector": connector, "database": database, "limit": limit, "timeout": timeout, "max_age": max_age,
        "is_kept": keep, "read_only": read_only, "max_estimated_bytes": max_estimated_bytes,
    }  # fmt: skip
    words = [*([statement] if statement is not None else []), *(values or [])]
    named = command.NamedValues(parameter or [], result or [])
    carry_out(lambda: command.run(given, words, file, named, output, to, is_expanded=expanded))


@app.command()
def connectors(output: AnyForm = None) -> None:
    """List the data sources to which you can send statements."""
    from queryserver_client.cli import sources  # noqa: PLC0415

    connected(lambda db: sources.show_connectors(db, output))


@app.command()
def explain(
    connector: Annotated[str, typer.Argument(help="Id, key or dialect of the connector.")],
    statement: Annotated[str | None, typer.Argument(help="SQL statement. Default or -: read from stdin.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the SQL from a file.")] = None,
    database: StatementDatabase = None,
    as_json: AsJson = False,
) -> None:
    """Print the plan of a statement, without running it."""
    from queryserver_client.cli import sources  # noqa: PLC0415
    from queryserver_client.cli.parameters import required_text  # noqa: PLC0415

    connected(lambda db: sources.explain(db, connector, required_text(statement, file), database, as_json=as_json))


@app.command()
def ps(
    all_users: Annotated[
        bool, typer.Option("-a", "--all", help="Statements of all users; for administrators.")
    ] = False,
    output: AnyForm = None,
) -> None:
    """List waiting and running statements."""
    from queryserver_client.cli import operations  # noqa: PLC0415

    connected(lambda db: operations.show_running(db, output, is_all=all_users))


@app.command()
def kill(ids: Annotated[list[str], typer.Argument(help="Ids or their prefixes, as printed by qs ps.")]) -> None:
    """Cancel statements on the engine. Administrators can cancel any user's statements."""
    from queryserver_client.cli import operations  # noqa: PLC0415

    connected(lambda db: operations.cancel(db, ids))


@app.command()
def history(
    text: Annotated[str | None, typer.Argument(help="Only statements that contain this text.")] = None,
    connector: Annotated[str | None, typer.Option("-c", "--dialect", help="Only statements of this dialect.")] = None,
    most: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Maximum number of statements.")] = 20,
    output: AnyForm = None,
) -> None:
    """List your statements, newest first."""
    from queryserver_client.cli import operations  # noqa: PLC0415

    connected(lambda db: operations.show_history(db, output, text=text or "", connector=connector, most=most))


@app.command()
def budget(
    user: Annotated[str | None, typer.Option("-u", "--user", help="Another user; for administrators.")] = None,
    output: AnyForm = None,
) -> None:
    """Show how much of your daily budget is used and left."""
    from queryserver_client.cli import operations  # noqa: PLC0415

    connected(lambda db: operations.show_budget(db, output, user))


@app.command()
def result(
    given: Annotated[
        str, typer.Argument(metavar="RESULT", help="Id of a result, its first characters, or the link of qs share.")
    ],
    output: AnyForm = None,
    to: Annotated[Path | None, typer.Option("--to", help="Write to a file, in the format of its suffix.")] = None,
    expanded: Annotated[
        bool, typer.Option("-x", "--expanded", help="Print each cell on its own line, without truncation.")
    ] = False,
) -> None:
    """Print a stored result: your own, or one that others share with you."""
    from queryserver_client.cli import shares as command  # noqa: PLC0415

    connected(lambda db: command.show_result(db, given, output, to, is_expanded=expanded))


@app.command()
def share(
    result: ResultId,
    users: Users = None,
    groups: Groups = None,
    until: Annotated[
        str | None, typer.Option("--until", help="12h, 7d or a time. Default and maximum: the server's settings.")
    ] = None,
    title: Annotated[str, typer.Option("-t", "--title", help="What the readers see instead of the statement.")] = "",
) -> None:
    """Let users and groups read a kept result, and print its link."""
    from queryserver_client.cli import shares as command  # noqa: PLC0415

    connected(lambda db: command.share(db, result, users=users or [], groups=groups or [], until=until, title=title))


@app.command()
def unshare(result: ResultId, users: Users = None, groups: Groups = None) -> None:
    """End the sharing of a result with users and groups; without any, with all."""
    from queryserver_client.cli import shares as command  # noqa: PLC0415

    connected(lambda db: command.unshare(db, result, users=users or [], groups=groups or []))


@app.command()
def shares(
    result: Annotated[str | None, typer.Argument(help="Id of your result. Default: results shared with you.")] = None,
    output: AnyForm = None,
) -> None:
    """List the results that others share with you, or who may read a result of yours."""
    from queryserver_client.cli import shares as command  # noqa: PLC0415

    connected(lambda db: command.show_shares(db, result, output))


@app.command()
def ls(
    paths: Annotated[list[str] | None, typer.Argument(help="Server paths. Default: list the stores.")] = None,
    long: Annotated[bool, typer.Option("-l", help="Also print permissions, owner, size and time.")] = False,
    output: AnyForm = None,
) -> None:
    """List server directories: store://… or, in the default store, :/…."""
    from queryserver_client.cli import stores  # noqa: PLC0415

    connected(lambda db: stores.list_entries(db, paths or [], output, is_long=long))


@app.command()
def cat(paths: Annotated[list[str], typer.Argument(help="Server paths.")]) -> None:
    """Print server files as stored."""
    from queryserver_client.cli import stores  # noqa: PLC0415

    connected(lambda db: stores.print_bytes(db, paths))


@app.command()
def mkdir(
    paths: Annotated[list[str], typer.Argument(help="Server paths.")],
    parents: Annotated[bool, typer.Option("-p", help="Do not fail if a directory exists.")] = False,
) -> None:
    """Create directories on the server."""
    from queryserver_client.cli import stores  # noqa: PLC0415

    connected(lambda db: stores.make_directories(db, paths, parents=parents))


@app.command()
def rm(
    paths: Annotated[list[str], typer.Argument(help="Server paths.")],
    recursive: Recursive = False,
    force: Annotated[bool, typer.Option("-f", "--force", help="Do not fail if an entry does not exist.")] = False,
    skip_trash: Annotated[bool, typer.Option("--skip-trash", help="Delete permanently.")] = False,
) -> None:
    """Delete server files, or move them to the trash if the store has one."""
    from queryserver_client.cli import stores  # noqa: PLC0415

    connected(lambda db: stores.remove(db, paths, recursive=recursive, skip_trash=skip_trash, force=force))


@app.command()
def cp(paths: Paths, recursive: Recursive = False, force: Force = False, go_on: GoOn = False) -> None:
    """Copy files to, from or within the server. - is stdin or stdout."""
    from queryserver_client.cli import transfers  # noqa: PLC0415

    options = transfers.Options(recursive, force, go_on)
    connected(lambda db: transfers.copy(db, *_sources_and_target(paths), options))


@app.command()
def mv(paths: Paths, recursive: Recursive = False, force: Force = False) -> None:
    """Move files to, from or within the server."""
    from queryserver_client.cli import transfers  # noqa: PLC0415

    options = transfers.Options(recursive, force)
    connected(lambda db: transfers.move(db, *_sources_and_target(paths), options))


@app.command()
def export(
    source: Annotated[
        str, typer.Argument(help="The id of a statement (or a prefix of it) with a result, or connector:sql.")
    ],
    path: Annotated[str, typer.Argument(help="store://… or :/…; the ending such as .csv.gz determines the format.")],
    format_: Annotated[
        str | None,
        typer.Option("--format", help="csv, tsv, xlsx, parquet, arrow, feather or ndjson. Default: from the name."),
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="none, gzip or zstd. Default: from the name, otherwise none.")
    ] = None,
    split_rows: Annotated[
        int | None, typer.Option(min=1, help="Write a folder of part files with this many rows each.")
    ] = None,
    split_bytes: Annotated[
        int | None, typer.Option(min=1, help="Write a folder of part files of about this many bytes.")
    ] = None,
    force: Force = False,
    guard: Annotated[bool, typer.Option("--guard", help="Guard text that spreadsheets read as formulas.")] = False,
    no_header: Annotated[bool, typer.Option("--no-header", help="Omit the line with the column names.")] = False,
    allow_truncated: AllowTruncated = False,
    parameter: Parameter = None,
    database: StatementDatabase = None,
    limit: MostRows = None,
    timeout: TimeLimit = None,
) -> None:
    """Write a result, or the rows of a statement, into files of a store."""
    from queryserver_client.cli import copies, exports  # noqa: PLC0415

    options = copies.StatementOptions(parameter, database, limit, timeout)
    connected(
        lambda db: exports.export(
            db,
            source,
            path,
            options,
            format=format_,
            compression=compression,
            split_rows=split_rows,
            split_bytes=split_bytes,
            if_exists="replace" if force else None,
            guard=guard,
            header=not no_header,
            allow_truncated=allow_truncated,
        )
    )


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="A local file, store://… or :/….")],
    target: Annotated[str, typer.Argument(help="connector.table or connector.database.table")],
    if_exists: Annotated[IfExists, typer.Option("--if-exists", help="Action if the table exists.")] = IfExists.ERROR,
    has_header: Annotated[bool | None, typer.Option("--has-header/--no-header", help="Default: detected.")] = None,
    kind: Annotated[FileKind | None, typer.Option("--type", help="Default: detected.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Field separator; \\t is a tab.")] = None,
    quote: Annotated[str | None, typer.Option(help="Quote character; none disables quoting.")] = None,
    encoding: Annotated[str | None, typer.Option()] = None,
    sheet: Annotated[str | None, typer.Option(help="Worksheet of a workbook. Default: the first.")] = None,
    date_format: Annotated[str | None, typer.Option(help="Date format as in strftime, such as %d/%m/%Y.")] = None,
    number_format: Annotated[
        str | None, typer.Option(help="The number 1234.5 as written in the file, such as 1.234,5.")
    ] = None,
    skip_rows: Annotated[
        int | None, typer.Option(min=0, help="Number of lines above the table. Default: detected.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="Prefix of comment lines. Default: detected.")] = None,
    escape: Annotated[
        str | None, typer.Option(help="Escape character for separators and quotes. Default: detected.")
    ] = None,
    null_words: Annotated[
        list[str] | None, typer.Option("--null", help="Cell text that means NULL; may be repeated. Default: detected.")
    ] = None,
    max_bad_rows: Annotated[
        int | None,
        typer.Option(
            min=-1, help="Maximum number of invalid rows to skip; -1 for no limit. Default: a small share of the rows."
        ),
    ] = None,
    is_preview: Annotated[bool, typer.Option("--preview", help="Show how the file is read; change nothing.")] = False,
) -> None:
    """Create a table from a file, or append the file's rows to a table."""
    from queryserver_client.cli import importing  # noqa: PLC0415

    options = importing.options_of(
        kind,
        delimiter,
        quote,
        has_header=has_header,
        encoding=encoding,
        sheet_name=sheet,
        date_format=date_format,
        number_format=number_format,
        skip_rows=skip_rows,
        comment=comment,
        escape=escape,
        null_words=null_words or None,
    )
    plan = importing.Plan(source, target, if_exists, max_bad_rows, options)
    connected(lambda db: importing.preview(db, plan) if is_preview else importing.load(db, plan))


@app.command()
def copy(
    source: Annotated[
        str, typer.Argument(help='CONNECTOR:"SELECT …", CONNECTOR:- to read the SQL from stdin, or the id of a result.')
    ],
    target: Annotated[str, typer.Argument(help="connector:table, connector:database.table, store://… or :/….")],
    if_exists: Annotated[
        IfExists, typer.Option("--if-exists", help="Action if the table or file exists. Files cannot be appended to.")
    ] = IfExists.ERROR,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Name of a column of the table, for each in order. Default: from the result."),
    ] = None,
    allow_truncated: AllowTruncated = False,
    parameter: Parameter = None,
    database: StatementDatabase = None,
    limit: MostRows = None,
    timeout: TimeLimit = None,
) -> None:
    """Write the rows of a statement, or a stored result, to a table of any connector, or to a file on the server."""
    from queryserver_client.cli import copies  # noqa: PLC0415

    options = copies.StatementOptions(parameter, database, limit, timeout)
    plan = copies.Plan(source, target, if_exists, column, allow_truncated, options)
    connected(lambda db: copies.copy(db, plan))


def run() -> None:
    """Parse the command line and run the command."""
    if sys.platform == "win32":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    end_in_order()
    print_logs()
    app()


def _sources_and_target(paths: list[str]) -> tuple[list[str], str]:
    from queryserver_client.cli.failures import WrongUse  # noqa: PLC0415

    if len(paths) < 2:
        raise WrongUse("a source and a target are required")
    return paths[:-1], paths[-1]
