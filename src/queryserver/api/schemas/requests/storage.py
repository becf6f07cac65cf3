"""Request fields of storage calls. A field may have several names, and be in the query string or the body.

Contract storage 2.1.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from queryserver.api.schemas.fields import (
    EMPTY_ALLOWED,
    MAX_ENTRIES,
    Fields,
    Flag,
    Integer,
    Json,
    OptionalText,
    PageSize,
    RequiredText,
    Text,
    TicketField,
    any_of,
    must,
    parse,
    requires,
)
from queryserver.errors.base import InvalidParameter, MissingParameter, conflicting_parameters
from queryserver.errors.files import too_many_entries
from queryserver.formats.delimited.encodings import ENCODINGS

QUERY_TOO = frozenset({"dest", "destination_path", "overwrite", "skip_trash", "wait"})
"""Fields that POST calls also read from the query string."""

PATH_FIELDS = ("path", "src_path", "source_path", "dest_path", "destination_path", "dest")
"""Names of fields that contain a path."""

NAME_FIELDS = ("name", "qqfilename")
"""Names of fields that contain the name of a new entry."""


def _few_items(value: Any) -> Any:
    """Check the number of paths before validating them, because validation takes some microseconds per path."""
    items: Any = value
    if isinstance(value, list | tuple) and len(items) > MAX_ENTRIES:
        raise too_many_entries(f"At most {MAX_ENTRIES} items are allowed per call.")
    return items


Items: TypeAlias = Annotated[tuple[RequiredText, ...], BeforeValidator(_few_items), Field(min_length=1)]
"""Paths of a call's items. Raises too_many_entries for more than 1000 paths (Contract storage 7.8)."""


class StorageFields(Fields):
    """Fields of a storage call. Each field is read from its own name and from its `SYNONYMS`."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {}
    REPEATABLE: ClassVar[frozenset[str]] = frozenset()
    """Fields that may be repeated. Their type is a tuple."""


FieldValues: TypeAlias = Mapping[str, Sequence[Any]]
"""The received values by name, in order. JSON values are unchanged; form and query values are strings."""


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The fields that a call received in the query string and in the body."""

    query: FieldValues
    body: FieldValues


Model = TypeVar("Model", bound=StorageFields)


def parse_request(model: type[Model], fields: RequestFields, *, max_json_depth: int) -> Model:
    """Parse the fields of a call. If a name is repeated, the last value applies.

    Raises conflicting_parameters if a field has different values under two names, or in query and body. Also raises
    the errors of `parse`.
    """
    values = {name: value for name in model.model_fields if (value := _value(model, name, fields)) is not None}
    return parse(model, values, max_json_depth=max_json_depth)


@cache
def wire_names(model: type[Fields]) -> frozenset[str]:
    """Return the wire names of a model's fields, including synonyms."""
    synonyms: Mapping[str, Sequence[str]] = model.SYNONYMS if issubclass(model, StorageFields) else {}
    own = {field.alias or name for name, field in model.model_fields.items()}
    return frozenset(own.union(*synonyms.values()))


class JsonArray(list[Any]):
    """The values of a field sent as a JSON array, which only repeatable fields accept."""


def _value(model: type[StorageFields], name: str, fields: RequestFields) -> Any:
    spellings = model.SYNONYMS.get(name, (name,))
    if name not in model.REPEATABLE and any(isinstance(fields.body.get(spelling), JsonArray) for spelling in spellings):
        raise InvalidParameter(f"{name} must not be an array.")
    found = [
        values if name in model.REPEATABLE else values[-1]
        for source in (fields.query, fields.body)
        for spelling in spellings
        if (values := [value for value in source.get(spelling, ()) if value is not None])
    ]
    if not found:
        return None
    if len(set(map(_content, found))) > 1:
        raise conflicting_parameters(f"{' and '.join(spellings)} have different values.")
    return found[-1]


def _content(value: Any) -> str:
    """Return the value as a string, so that JSON values can be compared with form and query values."""
    return str(value).lower() if isinstance(value, bool) else str(value)


MAX_WAIT_S = 600
_OTHER = "__other__"
_MODE = re.compile(r"0?[01]?[0-7]{3}")
_STICKY = 0o1000


Encoding: TypeAlias = Annotated[Text, Field(json_schema_extra={"enum": list(ENCODINGS)})]
"""Name of an encoding, case-insensitive."""


class NewEntryRequest(StorageFields):
    """Fields of mkdir and touch: a directory and a name, or only the full path."""

    path: RequiredText
    name: Text | None = None


class NamedEntryRequest(StorageFields):
    """Fields of create/directory and create/file."""

    path: RequiredText
    name: RequiredText


class SaveRequest(StorageFields):
    """Fields of save."""

    path: RequiredText
    contents: Text
    encoding: Encoding = "utf-8"


class PathRequest(StorageFields):
    """A call whose only field is a path."""

    path: RequiredText


class OptionalPathRequest(StorageFields):
    """A call whose only field is an optional path."""

    path: Text | None = None


class ReplicationRequest(StorageFields):
    """Fields of set_replication and replication."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"path": ("path", "src_path")}

    path: RequiredText
    replication_factor: Annotated[int, Integer(1, 512)]


class PathsRequest(StorageFields):
    """A call that accepts several paths."""

    REPEATABLE: ClassVar[frozenset[str]] = frozenset({"path"})

    path: Items


def _other_owner(name: str) -> dict[str, Any]:
    """Return the JSON Schema that requires `<name>` to be `__other__` and `<name>_other` to contain the actual name."""
    named = requires(f"{name}_other", type="string", minLength=1)
    return {"required": [name, *named["required"]], "properties": {name: {"const": _OTHER}, **named["properties"]}}


class DeleteRequest(PathsRequest):
    """Fields of rmtree, delete and delete/bulk. By default, entries are moved to the trash if the store has one."""

    skip_trash: Flag | None = None
    wait: Annotated[int, Integer(0, MAX_WAIT_S)] | None = None


class ChownRequest(PathsRequest):
    """Fields of chown."""

    model_config = any_of(
        *(requires(name, type="string", minLength=1, **{"not": {"const": _OTHER}}) for name in ("user", "group")),
        *(_other_owner(name) for name in ("user", "group")),
    )

    user: Text = ""
    group: Text = ""
    user_other: Text = ""
    group_other: Text = ""
    recursive: Flag = False

    def chosen(self) -> tuple[str | None, str | None]:
        """Return the owner and the group to set. A value of None stays unchanged.

        Raises MissingParameter if neither is to be set.
        """
        owner = self.user_other if self.user == _OTHER else self.user
        group = self.group_other if self.group == _OTHER else self.group
        if not owner and not group:
            raise MissingParameter("user or group is required.")
        return owner or None, group or None


class PermissionFlags(Fields):
    """Permissions as flags. Absent flags are false."""

    user_read: Flag = False
    user_write: Flag = False
    user_execute: Flag = False
    group_read: Flag = False
    group_write: Flag = False
    group_execute: Flag = False
    other_read: Flag = False
    other_write: Flag = False
    other_execute: Flag = False
    sticky: Flag = False

    def bits(self) -> int:
        names = [f"{who}_{what}" for who in ("user", "group", "other") for what in ("read", "write", "execute")]
        bits = sum(1 << (8 - position) for position, name in enumerate(names) if getattr(self, name))
        return bits | (_STICKY if self.sticky else 0)


def _octal(value: str) -> str:
    if not _MODE.fullmatch(value):
        raise must("be three octal digits, with a leading 1 for the sticky bit.")
    return value


_FLAG_GIVEN = {"type": ["boolean", "string"]}


class ChmodRequest(PathsRequest, PermissionFlags):
    """Fields of chmod: `permission`, the flags as separate fields, or `mode`."""

    model_config = any_of(
        requires("permission", type="object", minProperties=1),
        requires("mode", type="string"),
        *(requires(name, **_FLAG_GIVEN) for name in PermissionFlags.model_fields),
    )

    permission: Json[PermissionFlags] | None = None
    mode: Annotated[Text, AfterValidator(_octal), Field(json_schema_extra={"pattern": f"^{_MODE.pattern}$"})] | None = (
        None
    )
    recursive: Flag = False

    def permissions(self) -> int:
        """Return the permission bits to set.

        Raises MissingParameter if there are none, and conflicting_parameters if two forms have different values.
        """
        forms: dict[str, int] = {}
        if self.permission is not None and self.permission.model_fields_set:
            forms["permission"] = self.permission.bits()
        if not self.model_fields_set.isdisjoint(PermissionFlags.model_fields):
            forms["flags"] = self.bits()
        if self.mode is not None:
            forms["mode"] = int(self.mode, 8)
        if not forms:
            raise MissingParameter("permission, a flag such as user_read, or mode is required.")
        if len(set(forms.values())) > 1:
            raise conflicting_parameters(f"{' and '.join(forms)} have different values.")
        return next(iter(forms.values()))


_TO = ("dest_path", "destination_path", "dest")
_FROM = ("src_path", "source_path")


class RenameRequest(StorageFields):
    """Fields of rename. If the work has not ended after `wait` seconds, the response is 202 and the work continues.

    By default, the response is sent at the end of the work.
    """

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"src_path": _FROM, "dest_path": _TO}

    src_path: RequiredText
    dest_path: RequiredText
    overwrite: Flag = False
    wait: Annotated[int, Integer(0, MAX_WAIT_S)] | None = None


class MoveRequest(StorageFields):
    """Fields of move and copy. Several sources require a directory as the target."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"src_path": _FROM, "dest_path": _TO}
    REPEATABLE: ClassVar[frozenset[str]] = frozenset({"src_path"})

    src_path: Items
    dest_path: RequiredText
    overwrite: Flag = False
    wait: Annotated[int, Integer(0, MAX_WAIT_S)] | None = None


class OperationStatusParameters(StorageFields):
    id: Text


MAX_PAGE_SIZE = 10_000

SortBy = Literal["type", "name", "atime", "mtime", "user", "group", "size"]


Doas: TypeAlias = Annotated[Text, Field(json_schema_extra={"pattern": r"^(?!\.+$)[\w@.+-]{1,150}$", **EMPTY_ALLOWED})]
"""The user to act as. An empty string means the caller."""

_PATH_REQUIRED = ConfigDict(json_schema_extra={"required": ["path"]})
"""Marks `path` as required in the API description only: calls with the path in the URL share these parameters."""


class ReadParameters(StorageFields):
    """Fields of every GET call: the user to act as."""

    doas: Doas | None = None


class PathParameters(ReadParameters):
    model_config = _PATH_REQUIRED

    path: RequiredText | None = None


class DirectoryParameters(ReadParameters):
    pagenum: Annotated[int, Integer(1)] = 1
    pagesize: Annotated[int, PageSize(MAX_PAGE_SIZE)] = 30
    filter: Text = ""
    sortby: SortBy = "name"
    descending: Flag = False


class ListParameters(DirectoryParameters):
    path: Text | None = None


class ViewParameters(DirectoryParameters):
    is_embeddable: Flag = False


DIRECTORY_NAMES = ("dest", "destination_path", "dest_path")
FILE_NAMES = ("local_file", "hdfs_file", "file")
LEADING_NAMES = frozenset({*DIRECTORY_NAMES, "overwrite", "sha256"})
"""Upload fields that must precede the file in the body."""

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
Digest: TypeAlias = Annotated[
    OptionalText, AfterValidator(_digest), Field(json_schema_extra={"pattern": rf"^(?:\s*|{_SHA256.pattern})$"})
]
Count: TypeAlias = Annotated[int, Integer(0)]


class UploadRequest(StorageFields):
    """Fields of upload/file."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = _TO_DIRECTORY

    dest: RequiredText
    overwrite: Flag = False
    sha256: Digest = None


class UploadPartRequest(UploadRequest):
    """Fields of one part. If `qqtotalparts` is 0, the part is the whole file."""

    qquuid: ClientUuid
    qqpartindex: Count = 0
    qqpartbyteoffset: Count = 0
    qqtotalfilesize: Count
    qqtotalparts: Count = 0
    qqfilename: RequiredText
    qqchunksize: Count | None = None


class UploadCompleteRequest(StorageFields):
    """Fields of upload/complete. All fields except `qquuid` are optional."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = _TO_DIRECTORY

    qquuid: ClientUuid
    qqtotalfilesize: Count | None = None
    qqtotalparts: Count | None = None
    qqfilename: OptionalText = None
    dest: OptionalText = None
    overwrite: Flag | None = None
    sha256: Digest = None


class UploadStateRequest(StorageFields):
    """A call that identifies an upload."""

    qquuid: ClientUuid


MAX_WINDOW_BYTES = 1024 * 1024
_DEFAULT_WINDOW_BYTES = 4096


class WindowParameters(StorageFields):
    offset: Annotated[int, Integer(0)] = Field(default=0, description="Offset of the part in bytes.")
    length: Annotated[int, PageSize(MAX_WINDOW_BYTES, minimum=0)] = _DEFAULT_WINDOW_BYTES
    begin: Annotated[int, Integer(1)] = Field(default=1, description="First byte, from 1. Used together with `end`.")
    end: Annotated[int, PageSize()] | None = Field(
        default=None, description="Last byte. `begin` and `end` replace `offset` and `length`."
    )
    compression: Literal["none", "gzip", "bz2", "avro", "parquet", "snappy"] | None = None
    encoding: Encoding = "utf-8"

    @property
    def window(self) -> tuple[int, int]:
        """Offset and length in bytes. Raises InvalidParameter if `begin` is above `end`."""
        if self.end is None:
            return self.offset, self.length
        if self.begin > self.end:
            raise InvalidParameter("begin must not be above end.")
        return self.begin - 1, min(self.end - self.begin + 1, MAX_WINDOW_BYTES)


class FileViewParameters(WindowParameters):
    """Fields of view= for a file. If `mode` is absent, text is returned as text, and other content as a dump."""

    mode: Literal["text", "binary"] | None = None
    is_embeddable: Flag = False


class DisplayParameters(WindowParameters):
    path: Text | None = None
    mode: Literal["text"] = "text"
    doas: Doas | None = Field(default=None, description="Act as this user.")


class DispositionParameters(StorageFields):
    """Fields of download=. Only the value `inline` has an effect."""

    disposition: Text = "attachment"
    doas: Doas | None = Field(default=None, description="Act as this user.")
    ticket: TicketField = None


class DownloadFileParameters(DispositionParameters):
    model_config = _PATH_REQUIRED

    path: RequiredText | None = None


class ViewPathParameters(ViewParameters, FileViewParameters):
    """Fields of view=. Only the fields that apply to the kind of entry (directory or file) have an effect."""
