"""Value types and rules of documents: contents, parameters, permissions, pages (Contract documents 2 to 5)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Self, cast
from uuid import UUID

from queryserver.errors.base import InvalidParameter, MissingParameter, PayloadTooLarge
from queryserver.platform.settings.editor import DocumentSettings
from queryserver.sql.parameters import Parameters, ParameterType, read_parameters

MAX_NAME_CHARACTERS = 255
MAX_DESCRIPTION_CHARACTERS = 5000
MAX_DATABASE_CHARACTERS = 1000
MAX_FOLDER_CHARACTERS = 400
MAX_TAGS = 20
MAX_TAG_CHARACTERS = 50
MAX_PARAMETERS = 100
MAX_DEFAULTS_CHARACTERS = 16 * 1024
MAX_GRANTS = 100

ROOT = "/"
UNTITLED = "Untitled"


class Permission(StrEnum):
    """What a user may do with a document. Each permission includes the previous ones."""

    VIEW = "view"
    RUN = "run"
    EDIT = "edit"
    MANAGE = "manage"
    """Move, share, delete: the owner and administrators. Cannot be granted."""

    def includes(self, other: "Permission") -> bool:
        order = list(Permission)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class DocumentParameter:
    """A parameter of the statement. Runs must pass a value if there is no default."""

    name: str
    type: ParameterType | None = None
    """The type of plain values; None leaves them as they are."""
    default: Any = field(default=None, repr=False)
    """A value in the form of `execute`, or None if there is no default."""

    def value(self, given: Any) -> Any:
        """Return the value in the form of `execute`. A plain value gets the type of the parameter."""
        is_plain = not isinstance(given, Mapping) and given is not None
        typed = self.type is not None and self.type is not ParameterType.ARRAY
        return {"type": self.type, "value": given} if is_plain and typed else given

    @property
    def stored(self) -> Mapping[str, str]:
        """The parameter as it is stored. The default is JSON text, because jsonb does not keep `1e16` apart from
        `10000000000000000`.
        """
        default = None if self.default is None else json.dumps(self.default)
        stored = {"name": self.name, "type": self.type, "default": default}
        return {name: value for name, value in stored.items() if value is not None}

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Read a stored parameter. A type unknown to this version becomes None."""
        kind, default = stored.get("type"), stored.get("default")
        known = ParameterType(kind) if kind in tuple(ParameterType) else None
        return cls(stored["name"], known, None if default is None else json.loads(default))


@dataclass(frozen=True, slots=True)
class Content:
    """What a save changes, and what a version keeps."""

    name: str = ""
    description: str = ""
    statement: str = field(default="", repr=False)
    parameters: tuple[DocumentParameter, ...] = ()
    connector: str | None = None
    """Key of the connector, or None if each run names it or uses the default connector."""
    dialect: str | None = None
    database: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """The type as in the history: `query-<dialect>`, or `notebook` without a connector."""
        return type_of(self.dialect)

    def is_same(self, other: "Content") -> bool:
        """Return whether a save would change nothing. Compares defaults as JSON, in which 1, 1.0 and true differ."""
        own, others = ([one.stored for one in content.parameters] for content in (self, other))
        return own == others and replace(self, parameters=()) == replace(other, parameters=())

    @property
    def size_bytes(self) -> int:
        """The size that counts against the owner's quota."""
        parameters = json.dumps([one.stored for one in self.parameters])
        texts = (self.name, self.description, self.statement, *self.tags, parameters)
        return sum(len(text.encode()) for text in texts)

    def checked(self, settings: DocumentSettings) -> Self:
        """Return the content with normalized name and tags. Raises InvalidParameter, PayloadTooLarge."""
        name = " ".join(self.name.split()) or UNTITLED
        if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise InvalidParameter(f"name: at most {MAX_NAME_CHARACTERS} printable characters.")
        if len(self.description) > MAX_DESCRIPTION_CHARACTERS:
            raise InvalidParameter(f"description: at most {MAX_DESCRIPTION_CHARACTERS} characters.")
        if len(self.database or "") > MAX_DATABASE_CHARACTERS:
            raise InvalidParameter(f"database: at most {MAX_DATABASE_CHARACTERS} characters.")
        if len(self.statement.encode()) > settings.text_max_bytes:
            raise PayloadTooLarge(
                f"The text of a document has at most {settings.text_max_bytes} bytes (`documents.text_max_bytes`)."
            )
        _check_parameters(self.parameters)
        return replace(self, name=name, tags=checked_tags(self.tags))


def type_of(dialect: str | None) -> str:
    return f"query-{dialect}" if dialect else "notebook"


def checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags without surrounding blanks and repetitions. Raises InvalidParameter."""
    plain = tuple(dict.fromkeys(" ".join(tag.split()) for tag in tags))
    if len(plain) > MAX_TAGS or not all(0 < len(tag) <= MAX_TAG_CHARACTERS and tag.isprintable() for tag in plain):
        raise InvalidParameter(f"tags: at most {MAX_TAGS} tags of 1 to {MAX_TAG_CHARACTERS} printable characters.")
    return plain


def checked_folder(folder: str) -> str:
    """Return a folder as `/a/b`; the root is `/`. Raises InvalidParameter."""
    parts = [" ".join(part.split()) for part in folder.split("/")]
    names = [part for part in parts if part]
    path = ROOT + "/".join(names)
    if len(path) > MAX_FOLDER_CHARACTERS or not path.isprintable() or {".", ".."} & set(names):
        raise InvalidParameter(
            f"folder: names separated by `/`, at most {MAX_FOLDER_CHARACTERS} printable characters, without . and .. ."
        )
    return path


def _check_parameters(parameters: Sequence[DocumentParameter]) -> None:
    """Raise InvalidParameter for repeated or invalid names, and for defaults that do not suit their types."""
    names = [one.name for one in parameters]
    if len(names) > MAX_PARAMETERS:
        raise InvalidParameter(f"parameters: at most {MAX_PARAMETERS} parameters.")
    if len(set(names)) < len(names):
        raise InvalidParameter("parameters: each name may occur only once.")
    for one in parameters:
        _require_short_integers(one)
    if sum(len(json.dumps(one.default)) for one in parameters) > MAX_DEFAULTS_CHARACTERS:
        raise InvalidParameter(f"parameters: at most {MAX_DEFAULTS_CHARACTERS} characters in all defaults together.")
    read_parameters({one.name: one.value(one.default) for one in parameters})


def _require_short_integers(parameter: DocumentParameter) -> None:
    """Raise InvalidParameter for an integer of more than 64 bits, which not all JSON writers and readers support."""
    left: list[Any] = [parameter.default]
    while left:
        value = left.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InvalidParameter(
                f"parameters: the default of :{parameter.name} must have integers of 64 bits; write others as text."
            )
        left += value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()


def run_parameters(declared: Sequence[DocumentParameter], given: object) -> Parameters | None:
    """Return the values of a run: those of the call, and the defaults of all others.

    None if the document has no parameters and the call passes no values. Raises MissingParameter, InvalidParameter.
    """
    if given is None and not declared:
        return None
    if given is not None and not isinstance(given, Mapping):
        if declared:
            raise InvalidParameter("parameters must be a JSON object, because the document has named parameters.")
        return read_parameters(given)
    passed = dict(cast("Mapping[str, Any]", given or {}))
    values: dict[str, Any] = {}
    for one in declared:
        if one.name not in passed and one.default is None:
            raise MissingParameter(f"parameters: :{one.name} is required, because the document has no default for it.")
        values[one.name] = one.value(passed.pop(one.name) if one.name in passed else one.default)
    return read_parameters({**values, **passed})


@dataclass(frozen=True, slots=True)
class Grant:
    """A user or a group with a permission."""

    permission: Permission
    user: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class GrantChange:
    """A grant to set, or to revoke if `permission` is None."""

    permission: Permission | None
    user: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """Documents that get another owner: either one document, or all documents of a user."""

    to_user: str
    """Name of the new owner."""
    document: str | None = None
    from_user: str | None = None
    """Name of the user all of whose documents change, including the trash; None if `document` is set."""
    keep: Permission | None = None
    """What the former owner may still do; None for nothing."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A document in a list."""

    id: int
    uuid: UUID
    owner: str
    name: str
    description: str
    connector: str | None
    dialect: str | None
    database: str | None
    tags: tuple[str, ...]
    folder: str
    version: int
    created: datetime
    modified: datetime
    modified_by: str
    permission: Permission
    """The caller's permission."""
    is_trashed: bool

    @property
    def type(self) -> str:
        return type_of(self.dialect)


@dataclass(frozen=True, slots=True)
class Document:
    """A document as its caller may see it."""

    id: int
    uuid: UUID
    owner_id: int
    owner: str
    content: Content
    folder: str
    version: int
    created: datetime
    modified: datetime
    modified_by: str
    permission: Permission
    """The caller's permission."""
    is_trashed: bool
    grants: tuple[Grant, ...] = ()
    """Empty unless the caller may manage the document."""


@dataclass(frozen=True, slots=True)
class SavedDocument:
    """The document after a save."""

    document: Document
    is_new: bool


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """One version of a document: the current one, or one that a save replaced."""

    version: int
    content: Content
    modified: datetime
    modified_by: str


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version in a list."""

    version: int
    name: str
    modified: datetime
    modified_by: str


@dataclass(frozen=True, slots=True)
class Runnable:
    """What a run of a document submits. The values of a call take precedence over `connector` and `database`."""

    uuid: UUID
    name: str
    version: int
    statement: str = field(repr=False)
    connector: str | None
    database: str | None
    parameters: Parameters | None = field(repr=False)
    """None if the statement has no parameters."""


_CURSOR = re.compile(r"([0-9]{1,17})-([0-9]{1,18})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place after a document in a list, which is sorted by time and then by id, newest first."""

    modified: datetime
    id: int

    def __str__(self) -> str:
        return f"{(self.modified - _EPOCH) // timedelta(microseconds=1)}-{self.id}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read `next_after` of a page. Raises InvalidParameter."""
        if (found := _CURSOR.fullmatch(text)) is None:
            raise InvalidParameter("after must be the `next_after` of a page.")
        return cls(_EPOCH + timedelta(microseconds=int(found[1])), int(found[2]))


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    """Selects the documents of a list. None and empty strings match all."""

    folder: str | None = None
    tag: str | None = None
    text: str | None = None
    """A part of the name, the description or the statement, in any case."""
    owner: str | None = None
    type: str | None = None
    """A type as in `Content.type`."""
    is_trashed: bool = False
    """Whether to list the trash, which contains the caller's own documents only."""
    of_all: bool = False
    """Whether to list the documents of all users; for administrators."""
    after: Cursor | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Page:
    documents: Sequence[Summary]
    next_after: Cursor | None
    """None on the last page."""
