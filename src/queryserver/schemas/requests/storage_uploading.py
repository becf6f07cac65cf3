"""Fields of uploads (Contract storage 9)."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator

from queryserver.schemas.fields import Flag, Text, TextOrNothing, Whole, must
from queryserver.schemas.requests.given import StorageFields

DIRECTORY_NAMES = ("dest", "destination_path", "dest_path")
FILE_NAMES = ("local_file", "hdfs_file", "file")
LEADING_NAMES = frozenset({*DIRECTORY_NAMES, "overwrite", "sha256"})
"""Fields of an upload that are of no use behind the file."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_TO_DIRECTORY: Mapping[str, Sequence[str]] = {"dest": DIRECTORY_NAMES}


def _uuid(value: object) -> UUID:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise must("be a UUID.")
    return UUID(value)


def _digest(value: str | None) -> str | None:
    if value is not None and not _SHA256.fullmatch(value):
        raise must("be 64 hexadecimal digits.")
    return value


ClientUuid: TypeAlias = Annotated[UUID, BeforeValidator(_uuid)]
Digest: TypeAlias = Annotated[TextOrNothing, AfterValidator(_digest)]
Count: TypeAlias = Annotated[int, Whole(0)]


class UploadRequest(StorageFields):
    """Fields of upload/file."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = _TO_DIRECTORY

    dest: Text
    overwrite: Flag = False
    sha256: Digest = None


class UploadPartRequest(UploadRequest):
    """Fields of a part. `qqtotalparts` 0: the part is the whole file."""

    qquuid: ClientUuid
    qqpartindex: Count = 0
    qqpartbyteoffset: Count = 0
    qqtotalfilesize: Count
    qqtotalparts: Count = 0
    qqfilename: Text
    qqchunksize: Count | None = None


class UploadCompleteRequest(StorageFields):
    """Fields of upload/complete; all but `qquuid` may be left out."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = _TO_DIRECTORY

    qquuid: ClientUuid
    qqtotalfilesize: Count | None = None
    qqtotalparts: Count | None = None
    qqfilename: TextOrNothing = None
    dest: TextOrNothing = None
    overwrite: Flag | None = None
    sha256: Digest = None


class UploadStateRequest(StorageFields):
    """A call that names an upload."""

    qquuid: ClientUuid
