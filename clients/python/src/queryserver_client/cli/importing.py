"""`qs import`: creates a table from a local file or a file in a store."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import FAILED, WrongUse, say, text_of, visible
from queryserver_client.cli.forms import FileKind, Form, IfExists
from queryserver_client.cli.operations import show
from queryserver_client.cli.stores import is_remote, remote
from queryserver_client.cli.terminal import byte_bar
from queryserver_client.errors import StatementError
from queryserver_client.exports import parts_of
from queryserver_client.imports import FileOptions, ImportFile

if TYPE_CHECKING:
    from queryserver_client.sync import Connection


@dataclass(frozen=True)
class Plan:
    """The source, target and options of an import."""

    source: str
    target: str
    if_exists: IfExists
    max_bad_rows: int | None
    options: FileOptions


def options_of(kind: FileKind | None, delimiter: str | None, quote: str | None, **more: Any) -> FileOptions:
    """Convert command-line options to file options. `\\t` means a tab, and `none` disables quoting."""
    if delimiter is not None:
        delimiter = delimiter.replace("\\t", "\t")
        kind = kind or FileKind.DELIMITED
    if quote is not None:
        quote = "\\0" if quote == "none" else quote
    return FileOptions(
        file_type=None if kind is None else kind.value, field_separator=delimiter, quote_char=quote, **more
    )


def load(db: "Connection", plan: Plan) -> int:
    """Create the table, or append the rows to it, and report the outcome. Return the exit code."""
    try:
        parts_of(plan.target)  # checked before anything is sent
    except ValueError as error:
        raise WrongUse(str(error)) from None
    source = _source(db, plan.source)
    call: dict[str, Any] = {
        "if_exists": plan.if_exists.value,
        "max_bad_rows": plan.max_bad_rows,
        "options": plan.options,
        "is_remote": is_remote(plan.source),
    }
    try:
        if sys.stderr.isatty():
            from queryserver_client.cli.terminal import ProgressLine  # noqa: PLC0415

            waiting = ProgressLine()
            with waiting.shown():
                loaded = db.imports.load(source, plan.target, on_progress=waiting.on_progress, **call)
        else:
            loaded = db.imports.load(source, plan.target, **call)
    except StatementError as error:
        say(text_of(error))
        for line in db.statement(error.operation_id).logs().lines[-_LAST_LINES:] if error.operation_id else ():
            print(visible(line), file=sys.stderr)
        return FAILED
    bad = f", {loaded.rows_bad:,} invalid" if loaded.rows_bad else ""
    rows = "1 row" if loaded.rows_loaded == 1 else f"{loaded.rows_loaded:,} rows"
    print(f"{loaded.table}: {rows}{bad}")
    if loaded.operation_id:
        logged = db.statement(loaded.operation_id).logs().lines
        for line in filter(_LEFT_OUT.match, logged):
            say(visible(line))
        for line in [line for line in logged if line.startswith("Bad row")][:_LAST_LINES]:
            print(visible(line), file=sys.stderr)
        if loaded.rows_bad > _LAST_LINES:
            say(f"see the log of {loaded.operation_id} for more")
    return 0


def preview(db: "Connection", plan: Plan) -> None:
    """Print how the file is interpreted: the detected options, the columns with their types, and the first rows."""
    connector = plan.target.partition(".")[0]
    source = _source(db, plan.source)
    seen = db.imports.preview(source, connector, options=plan.options, is_remote=is_remote(plan.source))
    settings = ", ".join(f"{name} {value!r}" for name, value in seen.options.given().items())
    print(f"read as: {settings}", file=sys.stderr)
    for warning in seen.warnings:
        records = ", ".join(map(str, warning["rows"]))
        where = f": record {records}" if records else ""
        say(visible(f"{warning['code'].replace('_', ' ')} ({warning['count']}){where}"))
    names = [f"{column.name or column.source} {column.type}" for column in seen.columns]
    show(names, seen.rows, Form.TABLE)


def _source(db: "Connection", path: str) -> "str | ImportFile":
    """Return a store path unchanged; upload a local file and return its reference."""
    if is_remote(path):
        return remote(path)
    if not Path(path).is_file():
        raise WrongUse(f"{path} is not a file")
    with byte_bar(visible(Path(path).name)) as on_bytes:
        return db.imports.upload(Path(path), on_bytes=on_bytes)


_LAST_LINES = 10
_LEFT_OUT = re.compile(r"Skipped the first |Left out [0-9]|Read [0-9]+ cells? of column|[0-9]+ characters could not")
"""Log lines about data in the file that was skipped or changed."""
