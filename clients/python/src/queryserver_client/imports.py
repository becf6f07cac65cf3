"""Imports files into tables: delimited text, Excel, Parquet, Arrow, Avro, JSON Lines (Contract importer).

A file is either local, and then uploaded first, or in one of the stores of the server. Data frames are uploaded as
Arrow streams (`frames.py`).
"""

import datetime as dt
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import anyio

from queryserver_client.errors import ConfigurationError, QueryserverError
from queryserver_client.exports import parts_of
from queryserver_client.frames import Frame, is_frame, spooled
from queryserver_client.statement import Statement, canceling
from queryserver_client.status import moment
from queryserver_client.submitted import OnLog, OnProgress
from queryserver_client.transport import Call, Transport
from queryserver_client.uploads import OnBytes, Source, name_of, opened

if TYPE_CHECKING:
    from queryserver_client import generated
    from queryserver_client.generated import (
        DelimitedMetadata,
        DiscardedFile,
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
"""The server takes at most 60 s to read a workbook."""
_DISCARDED_WITHIN_S = 5.0
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
    """A file that the importer can read. An uploaded file is kept for 24 hours after its last use."""

    path: str
    import_type: Literal["local", "remote"]
    size: int | None = None
    expires_at: dt.datetime | None = None


class _Fields:
    """Base of dataclasses whose attributes are fields of a call."""

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class FileOptions(_Fields):
    """How a file is read. Options that are None are detected by the server."""

    file_type: FileType | None = None
    has_header: bool | None = None
    sheet_name: str | None = None
    """Worksheet of a workbook; by default the first."""
    field_separator: str | None = None
    quote_char: str | None = None
    """Quote character; `\\0` for none."""
    record_separator: str | None = None
    encoding: str | None = None
    date_format: str | None = None
    """Format of dates as in strftime, such as `%d/%m/%Y`."""
    number_format: str | None = None
    """The number 1234.5 in the notation of the file, such as `1.234,5`."""
    skip_rows: int | None = None
    """Number of text lines or worksheet rows above the table."""
    comment: str | None = None
    """Prefix of comment lines; `\\0` for none."""
    escape: str | None = None
    """Escape character, usually a backslash; `\\0` for none."""
    null_words: Sequence[str] | None = None
    """Cell texts that mean NULL in every column; an empty list for none."""


@dataclass(frozen=True)
class Guess:
    """The detected format of a file."""

    options: FileOptions
    """File type and separators; for a workbook, the first sheet."""
    sheet_names: tuple[str, ...] = ()
    confidence: float = 1.0


@dataclass(frozen=True)
class ImportColumn(_Fields):
    """A column of the table. Attributes that are None are taken from the preview."""

    source: str | int
    """Name of the column in the preview, or its 1-based position in the file."""
    name: str | None = None
    type: str | None = None
    """A type in the connector's dialect, such as `INT`, `numeric(12,2)` or `varchar(20)`."""
    nullable: bool = True
    format: str | None = None
    precision: int | None = None
    scale: int | None = None
    null_words: Sequence[str] | None = None
    """Cell texts that mean NULL in this column."""


@dataclass(frozen=True)
class Preview:
    """How a file would be imported: the options, the columns and the first rows."""

    options: FileOptions
    columns: tuple[ImportColumn, ...]
    """Columns, which can be modified with `dataclasses.replace` and passed to `load`."""
    rows: tuple[tuple[str, ...], ...]
    """The first rows, at most 50, as text."""
    warnings: "tuple[PreviewWarning, ...]"


@dataclass(frozen=True)
class Loaded:
    """A successful import."""

    table: str
    """`database.table`, or only the table name if no database was given."""
    rows_read: int
    rows_loaded: int
    rows_bad: int
    """Number of invalid rows, which were skipped. The log of the operation contains the first of them."""
    operation_id: str
    """Id for `Connection.statement`, which gives access to the log."""


class Start(Protocol):
    """Starts an operation exactly once, even if the request is repeated after a lost connection."""

    def __call__(self, path: str, fields: Mapping[str, Any], /) -> Awaitable[Statement]: ...


class Imports:
    """Implements `Connection.imports`. A source is a local path, bytes, a file object, a store path, or a data frame.

    A string is a store path if it starts with a scheme such as `s3a://`, or if `is_remote` is set. A data frame is an
    object with the Arrow PyCapsule interface (`__arrow_c_stream__`), such as one of pandas or polars, or a pyarrow
    table. It needs pyarrow. Its columns keep their types; an index of pandas is left out.
    """

    def __init__(self, transport: Transport, start: Start) -> None:
        self._transport = transport
        self._start = start

    async def upload(
        self, source: "Source | Frame", *, name: str | None = None, on_bytes: OnBytes | None = None
    ) -> ImportFile:
        """Upload a local file, or a data frame, that several calls will use.

        After a lost connection, the upload starts again. Raises MissingPackage and ConversionFailed for data frames.
        """
        if is_frame(source):
            async with spooled(cast("Frame", source)) as file:
                return await self.upload(file, name=name or "frame.arrows", on_bytes=on_bytes)
        source = cast("Source", source)
        async with opened(source) as content:
            files = {"file": (name or name_of(source) or "file", content.body(on_bytes))}
            call = Call("POST", "importer/upload/file/", files=files, is_repeatable=True, wait_s=_WORKED_WITHIN_S)
            body: ImportedFile = (await self._transport.send(call)).json()
        return ImportFile(body["file_path"], "local", body["size"], moment(body["expires_at"]))

    async def discard(self, file: ImportFile) -> bool:
        """Remove an uploaded file before it expires, so that it no longer counts toward the limit for each user.

        Returns whether this call removed it. Raises ApiError (`file_in_use`) while an import of the file is unfinished.
        """
        body: DiscardedFile = await self._transport.call(
            "POST", "importer/upload/discard", {"file_path": file.path}, is_repeatable=True
        )
        return body["discarded"]

    async def guess(self, source: "ImportFile | Source | Frame", *, is_remote: bool = False) -> Guess:
        """Detect the type of a file, and its separators or sheets."""
        async with self._file(source, is_remote) as file:
            return await self._guess(file, None)

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
        self, source: "ImportFile | Source | Frame", options: FileOptions | None = None, *, is_remote: bool = False
    ) -> FileOptions:
        """Return the file options for `preview` and `load`. Options that are not set in `options` are detected."""
        async with self._file(source, is_remote) as file:
            return await self._detected(file, options or FileOptions())

    async def preview(
        self,
        source: "ImportFile | Source | Frame",
        connector: str,
        *,
        options: FileOptions | None = None,
        is_remote: bool = False,
    ) -> Preview:
        """Return the columns with types in the connector's dialect, and at most 50 rows."""
        async with self._file(source, is_remote) as file:
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
        """Return the names of the column types of a connector or dialect."""
        body = await self._transport.call("GET", "importer/sql_type_mapping/", params={"connector": connector})
        return body["items"]

    async def submit(
        self,
        source: "ImportFile | Source | Frame",
        target: str | Sequence[str],
        *,
        if_exists: IfExists = "error",
        columns: Sequence[ImportColumn | Mapping[str, Any]] | None = None,
        options: FileOptions | None = None,
        max_bad_rows: int | None = None,
        is_remote: bool = False,
    ) -> Statement:
        """Start an import without waiting for its end. The arguments are those of `load`."""
        connector, database, table = parts_of(target)
        file = _file_of(source, is_remote) or await self.upload(cast("Source | Frame", source))
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
        source: "ImportFile | Source | Frame",
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
        """Create a table from a file or data frame, or append the rows to a table, and wait for completion.

        `target` is `connector.table` or `connector.database.table`, or a sequence of these names if one contains a dot.
        `columns` are the columns in table order, by default all columns of the file. `max_bad_rows` is the maximum
        number of invalid rows, which are skipped and logged: -1 for no limit, None for a few. A failed import leaves
        nothing behind. Canceling the waiting task cancels the import.

        Raises ApiError (`table_exists`, `file_not_found`, …) if the import cannot be started, StatementError if it
        fails later, and ConversionFailed if a column of a data frame cannot be represented as Arrow.
        """
        async with self._file(source, is_remote) as file:
            statement = await self.submit(
                file, target, if_exists=if_exists, columns=columns, options=options, max_bad_rows=max_bad_rows
            )
            async with canceling(statement):
                result = await statement.result(timeout_s, on_progress=on_progress, on_log=on_log)
                counts = (await result.dicts())[0]
        return Loaded(
            counts["table"], counts["rows_read"], counts["rows_loaded"], counts["rows_bad"], statement.operation_id
        )

    @asynccontextmanager
    async def _file(self, source: "ImportFile | Source | Frame", is_remote: bool) -> "AsyncGenerator[ImportFile]":
        """Yield the file of a source. A file that is uploaded for this call is discarded at the end."""
        if (file := _file_of(source, is_remote)) is not None:
            yield file
            return
        file = await self.upload(cast("Source | Frame", source))
        try:
            yield file
        finally:
            # The server may not respond, or not have this call. Then the file expires by itself.
            with anyio.move_on_after(self._transport.cleanup_s(_DISCARDED_WITHIN_S), shield=True):
                with suppress(QueryserverError):
                    await self.discard(file)

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


def _file_of(source: "ImportFile | Source | Frame", is_remote: bool) -> ImportFile | None:
    """Return the file, or None if the source must be uploaded."""
    if isinstance(source, ImportFile):
        return source
    if isinstance(source, str) and (is_remote or _STORE.match(source)):
        return ImportFile(source, "remote")
    if is_remote:
        raise ConfigurationError("a store path must be a string")
    return None


def _known(facts: Mapping[str, Any], kind: type[FileOptions] | type[ImportColumn]) -> dict[str, Any]:
    """Return the members of `facts` that are fields of `kind`."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in facts.items() if name in names}
