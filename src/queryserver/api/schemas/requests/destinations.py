"""The destination of rows in export_result and in the field `into` of execute (Contract exports)."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo

from queryserver.api.schemas.fields import Fields, Flag, Integer, OptionalText, is_storable_text, must, parse_json_text
from queryserver.errors.base import InvalidParameter, MissingParameter, conflicting_parameters
from queryserver.exports.model import FileDestination, completed_destination
from queryserver.exports.tables import IfExists, TableDestination
from queryserver.formats.table_files import MAX_COLUMNS
from queryserver.platform.text import is_array

_FILE_FIELDS = ("path", "format", "compression", "guard", "header", "split_rows", "split_bytes")
MAX_SPLIT_ROWS = 10**10
MIN_SPLIT_BYTES = 1024**2
MAX_SPLIT_BYTES = 1024**4


RequestedDestination: TypeAlias = FileDestination | TableDestination


def _names(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """Parse an array of names, sent as a JSON array or as JSON text."""
    names = parse_json_text(value, info)
    if not is_array(names) or not 1 <= len(names) <= MAX_COLUMNS:
        raise must(f"be a JSON array of 1 to {MAX_COLUMNS} names.")
    if not all(isinstance(name, str) and is_storable_text(name) for name in names):
        raise must("contain only texts.")
    return tuple(names)


class DestinationFields(Fields):
    """Where the rows go."""

    path: OptionalText = Field(
        default=None,
        description="File in any store, or with `split_rows` or `split_bytes` the folder of the part files. The folder"
        " that contains it must exist.",
    )
    format: Literal["csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson"] | None = Field(
        default=None, description="By default, the format that the ending of the name denotes, such as `.csv.gz`."
    )
    compression: Literal["none", "gzip", "zstd"] | None = Field(
        default=None,
        description="Compression of the whole file; in parquet, arrow and feather within the file. By default, the"
        " one that the ending of the name denotes, otherwise none (parquet: snappy).",
    )
    guard: Flag = Field(
        default=False, description="csv and tsv: put `'` before text that a spreadsheet could interpret as a formula."
    )
    header: Flag = Field(default=True, description="csv and tsv: begin each file with the names of the columns.")
    split_rows: Annotated[int, Integer(1, MAX_SPLIT_ROWS)] | None = Field(
        default=None, description="Write a folder of part files with this many rows each."
    )
    split_bytes: Annotated[int, Integer(MIN_SPLIT_BYTES, MAX_SPLIT_BYTES)] | None = Field(
        default=None, description="Write a folder of part files, each of which ends once it has this many bytes."
    )
    connector: OptionalText = Field(
        default=None, description="Connector of the table: its id, its key, or its dialect. Only with `table`."
    )
    database: OptionalText = Field(
        default=None, description="Database of the table, or schema where the dialect has schemas. Only with `table`."
    )
    table: OptionalText = Field(
        default=None, description="Table that receives the rows, instead of files. Requires `connector`."
    )
    columns: Annotated[tuple[str, ...] | None, BeforeValidator(_names)] = Field(
        default=None,
        description="Names of the table's columns, in the order of the result. By default, the names in the result."
        ' Sent as a JSON array such as `["id", "name"]`.',
    )
    if_exists: Literal["error", "append", "replace"] = Field(
        default="error",
        description="`replace` replaces an existing table or file, but not a folder of part files. `append` adds the"
        " rows to a table, or creates it.",
    )

    def requested(self) -> RequestedDestination:
        """Return the destination. Raises MissingParameter, InvalidParameter, conflicting_parameters."""
        if self.table is None and self.connector is None:
            return self._files()
        if self.table is None or self.connector is None:
            raise MissingParameter("connector and table are both required for a destination that is a table.")
        given = {name for name in _FILE_FIELDS if name in self.model_fields_set}
        if given:
            raise conflicting_parameters(f"{min(given)} cannot be combined with table.")
        exists = IfExists(self.if_exists)
        return TableDestination(self.connector, self.database or None, self.table, exists, self.columns)

    def _files(self) -> FileDestination:
        if self.path is None:
            raise MissingParameter("path is required, or connector and table.")
        if self.database is not None or self.columns is not None:
            raise conflicting_parameters("database and columns require table.")
        if self.if_exists == "append":
            raise InvalidParameter("if_exists: rows cannot be appended to files.")
        return completed_destination(
            FileDestination(
                path=self.path,
                compression=self.compression or "",
                guard=self.guard,
                header=self.header,
                split_rows=self.split_rows,
                split_bytes=self.split_bytes,
                replace=self.if_exists == "replace",
            ),
            format_name=self.format,
        )
