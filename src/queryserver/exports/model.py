"""Values of exports: where rows go, and what an export reports."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from pydantic import TypeAdapter

from queryserver.errors.base import InvalidParameter, MissingParameter, PermissionDenied, download_disabled
from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.download.encoder import ContentCoding, DownloadFormat, FileForm
from queryserver.identity.model import DOWNLOAD, User
from queryserver.identity.users import UserDirectory
from queryserver.statements.job_session import JobReport

SUMMARY_COLUMNS = (
    Column("rows", ResultType.BIGINT, "BIGINT"),
    Column("bytes", ResultType.BIGINT, "BIGINT"),
    Column("files", ResultType.BIGINT, "BIGINT"),
    Column("path", ResultType.STRING, "STRING"),
    Column("table", ResultType.STRING, "STRING"),
    Column("schema", ResultType.STRING, "STRING"),
)
_ARROW_TYPES = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export has written: files (`bytes`, `files`, `path`) or a table (`table`)."""

    rows: int
    schema: str
    """JSON array with an object of `name` and `type` for each column."""
    bytes: int | None = None
    files: int | None = None
    path: str | None = None
    table: str | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The one row that becomes the result of the statement."""
        values = (self.rows, self.bytes, self.files, self.path, self.table, self.schema)
        arrays = [pa.array([value], kind) for value, kind in zip(values, _ARROW_TYPES, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in SUMMARY_COLUMNS])


def schema_text(columns: Sequence[Column]) -> str:
    """Return the value of `ExportSummary.schema`."""
    return json.dumps([{"name": column.name, "type": column.type.value} for column in columns], ensure_ascii=False)


def require_download(user: User, *, is_enabled: bool) -> None:
    """Raise download_disabled if the user may not take rows out of the server."""
    if not is_enabled or not user.may(DOWNLOAD):
        raise download_disabled("Downloads are disabled for your account.")


async def present_rights(users: UserDirectory, user: User) -> User:
    """Return the user as of now, because the statement may have waited for its rows. Raises PermissionDenied."""
    now = await users.user(user.id)
    if now is None:
        raise PermissionDenied("The user is no longer active.")
    return now if user.api_token is None else now.narrowed(user.api_token)


class Destination(Protocol):
    """Where the rows of a statement go."""

    @property
    def connector(self) -> str | None:
        """The key of the connector under which an export of a stored result runs; None for that of the source."""
        ...

    @property
    def path(self) -> str:
        """The destination as shown in histories and answers: a path, or the name of a table."""
        ...

    def stored(self) -> Mapping[str, Any]:
        """The form in which the statement's record holds the destination. Its `kind` selects the sink."""
        ...

    async def check(self, user: User) -> None:
        """Check, before the statement is recorded, that the user may write there. Raises QueryServerError."""
        ...


FILES = "files"
"""The `kind` of destinations in files."""

_ENDINGS: Mapping[str, DownloadFormat] = {**{one.value: one for one in DownloadFormat}, "jsonl": DownloadFormat.NDJSON}
_PACKED_ENDINGS: Mapping[str, str] = {"gz": "gzip", "zst": "zstd"}
_TYPED = frozenset({DownloadFormat.PARQUET, DownloadFormat.ARROW, DownloadFormat.FEATHER})


@dataclass(frozen=True, slots=True)
class FileDestination:
    """Files in a store. With `split_rows` or `split_bytes`, `path` is a folder of part files."""

    path: str
    format: DownloadFormat = DownloadFormat.CSV
    compression: str = ""
    """`none`, `gzip` or `zstd`; empty for the default of the format."""
    guard: bool = False
    header: bool = True
    split_rows: int | None = None
    split_bytes: int | None = None
    replace: bool = False

    @property
    def is_split(self) -> bool:
        return self.split_rows is not None or self.split_bytes is not None

    @property
    def form(self) -> FileForm:
        """The form of each file. Typed files are compressed within the file, text files as a whole."""
        if self.format in _TYPED:
            return FileForm(self.format, codec=self.compression)
        coding = ContentCoding(self.compression) if self.compression in {"gzip", "zstd"} else ContentCoding.IDENTITY
        return FileForm(self.format, guard=self.guard, coding=coding, has_header=self.header)

    @property
    def extension(self) -> str:
        """The extension of part files, for example `csv.gz`."""
        coding = self.form.coding.value
        packed = [ending for ending, name in _PACKED_ENDINGS.items() if name == coding]
        return ".".join([self.format.value, *packed])

    def stored(self) -> Mapping[str, Any]:
        return {"kind": FILES, **_FILES.dump_python(self, mode="json")}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "FileDestination":
        """Return the destination that `stored` has written."""
        return _FILES.validate_python({name: value for name, value in stored.items() if name in cls.__slots__})


_FILES = TypeAdapter(FileDestination)


def completed_destination(destination: FileDestination, *, format_name: str | None) -> FileDestination:
    """Derive the format and the compression from the name, if they are not given, and check that they fit together.

    Raises MissingParameter, InvalidParameter.
    """
    endings = destination.path.rstrip("/").rpartition("/")[2].lower().split(".")[1:]
    packed = _PACKED_ENDINGS.get(endings[-1], "") if endings else ""
    named = _ENDINGS.get(endings[-2 if packed else -1]) if len(endings) > bool(packed) else None
    kind = named if format_name is None else DownloadFormat(format_name)
    if kind is None:
        raise MissingParameter("format is required, because the name does not end with the extension of a format.")
    if destination.is_split and destination.replace:
        raise InvalidParameter(
            "if_exists: a folder of part files cannot be replaced. Choose a path that does not exist."
        )
    compression = destination.compression or packed
    if kind is DownloadFormat.XLSX and compression not in {"", "none"}:
        raise InvalidParameter("compression: xlsx files are always compressed; use none.")
    if kind in _TYPED - {DownloadFormat.PARQUET} and compression == "gzip":
        raise InvalidParameter(f"compression: {kind.value} files can be compressed with zstd, but not with gzip.")
    return replace(destination, format=kind, compression=compression)


class RowSink(Protocol):
    """Writes all rows of one export."""

    async def write(
        self, columns: Sequence[Column], batches: AsyncIterator[pa.RecordBatch], report: JobReport
    ) -> ExportSummary:
        """Write all rows, or nothing that others can see.

        The schemas of the batches may differ (Contract editor 6.3). Sets the progress and adds log lines to `report`,
        but not the summary. Raises QueryServerError and the errors of `batches`.
        """
        ...
