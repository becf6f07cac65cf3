"""Creates tables from files: delimited text, workbooks, Parquet, Arrow, Avro, JSON Lines (Contract importer).

A file is either local and first sent to the server, or it is in one of the server's stores.
"""

import datetime as dt
import json
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from queryserver_client.errors import ConfigurationError
from queryserver_client.statement import Statement, canceling
from queryserver_client.status import moment
from queryserver_client.submitted import OnLog, OnProgress
from queryserver_client.transport import Call, Transport
from queryserver_client.uploads import OnBytes, Source, name_of, opened

if TYPE_CHECKING:
    from queryserver_client import generated
    from queryserver_client.generated import (
        DelimitedMetadata,
        ExcelMetadata,
        HeaderGuess,
        ImportedFile,
        PreviewWarning,
        RecordsMetadata,
    )
    from queryserver_client.transport import Answer

FileType = Literal["csv", "tsv", "excel", "delimiter_format", "parquet", "ndjson", "avro", "arrow"]
IfExists = Literal["error", "append", "replace"]
_WORKED_WITHIN_S = 90.0
"""A workbook is read within 60 s or rejected."""
_OF_HEADER = frozenset(
    {
        "file_type", "sheet_name", "field_separator", "quote_char", "record_separator", "encoding", "skip_rows",
        "comment", "escape",
    }
)  # fmt: skip
"""The file options that guess_header accepts."""
_RECORDS = frozenset({"parquet", "ndjson", "avro", "arrow"})
_STORE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True)
class ImportFile:
    """A file that the importer can read. An upload is kept for 24 hours after its last use."""

    path: str
    import_type: Literal["local", "remote"]
    size: int | None = None
    expires_at: dt.datetime | None = None


class _Fields:
    """A dataclass whose fields are the call's fields."""

    def given(self) -> dict[str, Any]:
        """Return the fields that are set, by their names in the contract."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class FileOptions(_Fields):
    """How a file is read. The server detects missing options."""

    file_type: FileType | None = None
    has_header: bool | None = None
    sheet_name: str | None = None
    """A workbook's sheet, by default the first one."""
    field_separator: str | None = None
    quote_char: str | None = None
    """`\\0` disables quoting."""
    record_separator: str | None = None
    encoding: str | None = None
    date_format: str | None = None
    """A strftime format: `%d/%m/%Y`."""
    number_format: str | None = None
    """The number 1234.5 as written in the file: `1.234,5`."""
    skip_rows: int | None = None
    """Lines in a text, or rows in a worksheet, above the table."""
    comment: str | None = None
    """The prefix of comment lines; `\\0` for none."""
    escape: str | None = None
    """The escape character, usually a backslash; `\\0` for none."""
    null_words: Sequence[str] | None = None
    """Cells that mean NULL in every column; an empty list for none."""


@dataclass(frozen=True)
class Guess:
    """A file's detected format."""

    options: FileOptions
    """The file's type and separators; for a workbook, the first sheet."""
    sheet_names: tuple[str, ...] = ()
    confidence: float = 1.0


@dataclass(frozen=True)
class ImportColumn(_Fields):
    """A column of the new table. Missing values are as in the preview."""

    source: str | int
    """The column's name in the preview, or its position in the file, starting at 1."""
    name: str | None = None
    type: str | None = None
    """A type in the connector's dialect: `INT`, `numeric(12,2)`, `varchar(20)`."""
    nullable: bool = True
    format: str | None = None
    precision: int | None = None
    scale: int | None = None
    null_words: Sequence[str] | None = None
    """Cells that mean NULL in this column."""


@dataclass(frozen=True)
class Preview:
    """A file's first rows as they would appear in a table."""

    options: FileOptions
    columns: tuple[ImportColumn, ...]
    """The columns, which can be changed (`dataclasses.replace`) and passed to `load`."""
    rows: tuple[tuple[str, ...], ...]
    """The texts in the file."""
    warnings: "tuple[PreviewWarning, ...]"


@dataclass(frozen=True)
class Loaded:
    """A successful import."""

    table: str
    """`database.table`, or only the table if no database was given."""
    rows_read: int
    rows_loaded: int
    rows_bad: int
    """Rows that did not fit. The operation's log contains the first of them."""
    operation_id: str
    """`Connection.statement(loaded.operation_id)` provides the log."""


class Start(Protocol):
    """Starts an operation exactly once, even if the call is interrupted and repeated."""

    def __call__(self, path: str, fields: Mapping[str, Any], /) -> Awaitable[Statement]: ...


class Imports:
    """Implements `Connection.imports`. A source is a local path, bytes, an object with `read`, or a store path.

    A text is a store path if it starts with a store's scheme such as `s3a://`, or with `is_remote=True`.
    """

    def __init__(self, transport: Transport, start: Start) -> None:
        self._transport = transport
        self._start = start

    async def upload(self, source: Source, *, name: str | None = None, on_bytes: OnBytes | None = None) -> ImportFile:
        """Send a local file to the server, to be used by several calls. After a lost connection the upload starts
        again from 0 bytes.
        """
        async with opened(source) as content:
            files = {"file": (name or name_of(source) or "file", content.body(on_bytes))}
            call = Call("POST", "importer/upload/file/", files=files, is_repeatable=True, wait_s=_WORKED_WITHIN_S)
            body: ImportedFile = (await self._transport.send(call)).json()
        return ImportFile(body["file_path"], "local", body["size"], moment(body["expires_at"]))

    async def guess(self, source: "ImportFile | Source", *, is_remote: bool = False) -> Guess:
        """Return a file's type, and its separators or sheets."""
        return await self._guess(await self._file(source, is_remote), None)

    async def _guess(self, file: ImportFile, encoding: str | None) -> Guess:
        query = None if encoding is None else {"encoding": encoding}
        body: DelimitedMetadata | ExcelMetadata | RecordsMetadata = await self._get(
            "importer/file/guess_metadata/", file, query
        )
        sheets = tuple(body.get("sheet_names", ()))
        known = _known(body, FileOptions)
        options = FileOptions(file_type=body["type"], sheet_name=sheets[0] if sheets else None, **known)
        return Guess(options, sheets, body.get("confidence", 1.0))

    async def options(
        self, source: "ImportFile | Source", options: FileOptions | None = None, *, is_remote: bool = False
    ) -> FileOptions:
        """Return all file options that `preview` and `load` need. Options missing in `options` are detected."""
        return await self._detected(await self._file(source, is_remote), options or FileOptions())

    async def preview(
        self,
        source: "ImportFile | Source",
        connector: str,
        *,
        options: FileOptions | None = None,
        is_remote: bool = False,
    ) -> Preview:
        """Return the columns, with types in the connector's dialect, and at most 50 rows."""
        file = await self._file(source, is_remote)
        detected = await self._detected(file, options or FileOptions())
        query = {**detected.given(), "connector": connector}
        body: generated.Preview = await self._get("importer/file/preview/", file, query)
        return Preview(
            detected,
            tuple(ImportColumn(**_known(column, ImportColumn)) for column in body["columns"]),
            tuple(tuple(row) for row in body["preview_data"]),
            tuple(body.get("warnings", ())),
        )

    async def types(self, connector: str) -> list[str]:
        """Return the available column types for a connector or a dialect."""
        body = await self._transport.call("GET", "importer/sql_type_mapping/", params={"connector": connector})
        return body["items"]

    async def submit(
        self,
        source: "ImportFile | Source",
        target: str | Sequence[str],
        *,
        if_exists: IfExists = "error",
        columns: Sequence[ImportColumn | Mapping[str, Any]] | None = None,
        options: FileOptions | None = None,
        max_bad_rows: int | None = None,
        is_remote: bool = False,
    ) -> Statement:
        """Start an import without waiting for it. The arguments are the same as for `load`."""
        connector, database, table = parts_of(target)
        file = await self._file(source, is_remote)
        detected = await self._detected(file, options or FileOptions())
        body = {
            "file_path": file.path,
            "import_type": file.import_type,
            **detected.given(),
            "connector": connector,
            "table": table,
            "if_exists": if_exists,
        }
        if max_bad_rows is not None:
            body["max_bad_rows"] = max_bad_rows
        if database:
            body["database"] = database
        if columns is not None:
            body["columns"] = [one.given() if isinstance(one, ImportColumn) else dict(one) for one in columns]
        return await self._start("importer/create_table", body)

    async def load(
        self,
        source: "ImportFile | Source",
        target: str | Sequence[str],
        *,
        if_exists: IfExists = "error",
        columns: Sequence[ImportColumn | Mapping[str, Any]] | None = None,
        options: FileOptions | None = None,
        max_bad_rows: int | None = None,
        is_remote: bool = False,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> Loaded:
        """Create a table from a file, or insert its rows into a table, and wait for completion.

        `target` is `connector.table` or `connector.database.table`, or a sequence of these names if a name contains
        dots. `columns` are the table's columns in table order, by default all columns in the file. `max_bad_rows` is
        how many rows may not fit: -1 for any number, None for a few. The operation's log lists these rows. A failed
        import leaves nothing behind. Canceling the waiting task cancels the import.

        Raises ApiError (`table_exists`, `file_not_found`, …) before anything is started, StatementError afterwards.
        """
        statement = await self.submit(
            source,
            target,
            if_exists=if_exists,
            columns=columns,
            options=options,
            max_bad_rows=max_bad_rows,
            is_remote=is_remote,
        )
        async with canceling(statement):
            result = await statement.result(timeout_s, on_progress=on_progress, on_log=on_log)
            counts = (await result.dicts())[0]
        return Loaded(
            counts["table"], counts["rows_read"], counts["rows_loaded"], counts["rows_bad"], statement.operation_id
        )

    async def _file(self, source: "ImportFile | Source", is_remote: bool) -> ImportFile:
        if isinstance(source, ImportFile):
            return source
        if isinstance(source, str) and (is_remote or _STORE.match(source)):
            return ImportFile(source, "remote")
        if is_remote:
            raise ConfigurationError("a path of a store is a text")
        return await self.upload(source)

    async def _detected(self, file: ImportFile, options: FileOptions) -> FileOptions:
        if options.file_type is None or (options.file_type == "excel" and options.sheet_name is None):
            guess = (await self._guess(file, options.encoding)).options
            options = replace(guess, **options.given())
        if options.has_header is None and options.file_type not in _RECORDS:
            query = {name: value for name, value in options.given().items() if name in _OF_HEADER}
            header: HeaderGuess = await self._get("importer/file/guess_header/", file, query)
            options = replace(options, has_header=header["has_header"])
        return options

    async def _get(self, path: str, file: ImportFile, query: Mapping[str, Any] | None = None) -> "Answer":
        params = {"file_path": file.path, "import_type": file.import_type, **(query or {})}
        if (words := params.get("null_words")) is not None:
            params["null_words"] = json.dumps(list(words))
        return await self._transport.call("GET", path, params=params, wait_s=_WORKED_WITHIN_S)


def _known(facts: Mapping[str, Any], kind: type[FileOptions] | type[ImportColumn]) -> dict[str, Any]:
    """Return the facts that are fields of `kind`."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in facts.items() if name in names}


def parts_of(target: str | Sequence[str]) -> tuple[str, str | None, str]:
    """Return the connector, the database and the table. The database may contain dots (trino: `catalog.schema`).

    Raises ValueError.
    """
    parts = target.split(".") if isinstance(target, str) else list(target)
    if len(parts) < 2 or not all(parts):
        message = f"{target!r} names no table: give connector.table or connector.database.table"
        raise ValueError(message)
    return parts[0], ".".join(parts[1:-1]) or None, parts[-1]
