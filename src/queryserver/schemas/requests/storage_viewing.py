"""Fields of the storage calls that show and send files (Contract storage 5.3, 5.5)."""

from typing import Annotated, Literal

from pydantic import Field

from queryserver.domain.errors.base import InvalidParameter
from queryserver.schemas.fields import Flag, Text, Whole
from queryserver.schemas.requests.given import StorageFields
from queryserver.schemas.requests.storage_reading import ViewParameters

MAX_WINDOW_BYTES = 1024 * 1024
_DEFAULT_WINDOW_BYTES = 4096


class WindowParameters(StorageFields):
    """Which part of a file, and how it is to be read."""

    offset: Annotated[int, Whole(0)] = Field(default=0, description="Bytes of the shown stream.")
    length: Annotated[int, Whole(0, MAX_WINDOW_BYTES)] = _DEFAULT_WINDOW_BYTES
    begin: Annotated[int, Whole(1)] = Field(default=1, description="First byte, from 1; counts together with `end`.")
    end: Annotated[int, Whole(1)] | None = Field(default=None, description="Last byte, instead of offset and length.")
    compression: Literal["none", "gzip", "bz2", "avro", "parquet", "snappy"] | None = None
    encoding: Text = "utf-8"

    @property
    def window(self) -> tuple[int, int]:
        """Offset and length in bytes. Raises InvalidParameter."""
        if self.end is None:
            return self.offset, self.length
        if self.begin > self.end:
            raise InvalidParameter("begin must not be above end.")
        length = self.end - self.begin + 1
        if length > MAX_WINDOW_BYTES:
            raise InvalidParameter(f"begin and end must enclose at most {MAX_WINDOW_BYTES} bytes.")
        return self.begin - 1, length


class FileViewParameters(WindowParameters):
    """Fields of view= of a file. `mode` None: text where it is text."""

    mode: Literal["text", "binary"] | None = None
    is_embeddable: Flag = False


class DisplayParameters(WindowParameters):
    """Fields of display."""

    path: Text | None = None
    mode: Literal["text"] = "text"
    doas: Text | None = Field(default=None, description="Act as this user.")


class DispositionParameters(StorageFields):
    """Fields of download=. Only `inline` is more than a wish for an attachment."""

    disposition: Text = "attachment"
    doas: Text | None = Field(default=None, description="Act as this user.")


class DownloadFileParameters(DispositionParameters):
    """Fields of download."""

    path: Text | None = None


class ViewPathParameters(ViewParameters, FileViewParameters):
    """Fields of view=: those of the kind of entry that is found are read."""
