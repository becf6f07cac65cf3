"""The destination of rows in export_result and in the field `into` of execute (Contract exports 2 to 5)."""

from typing import Annotated, Literal

from pydantic import Field

from queryserver.api.schemas.fields import Fields, Flag, Integer, OptionalText
from queryserver.errors.base import MissingParameter
from queryserver.exports.model import FileDestination, completed_destination

MAX_SPLIT_ROWS = 10**10
MIN_SPLIT_BYTES = 1024**2
MAX_SPLIT_BYTES = 1024**4


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
    if_exists: Literal["error", "replace"] = Field(
        default="error",
        description="`replace` replaces an existing file, or a folder that contains only files of an earlier export.",
    )

    def files(self) -> FileDestination:
        """Return the destination in files. Raises MissingParameter, InvalidParameter."""
        if self.path is None:
            raise MissingParameter("path is required.")
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
