"""Fields of the storage calls that make, mark and delete entries (Contract storage 6, 7.7, 8)."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from queryserver.domain.errors.base import MissingParameter, conflicting_parameters
from queryserver.schemas.fields import Flag, Json, Text, Whole, must
from queryserver.schemas.requests.given import Items, StorageFields
from queryserver.schemas.snippets import Fields

MAX_WAIT_S = 600
_OTHER = "__other__"
_MODE = re.compile(r"0?[01]?[0-7]{3}")
_STICKY = 0o1000


class NewEntryRequest(StorageFields):
    """Fields of mkdir and touch: the directory and a name, or the full path alone."""

    path: Text
    name: Text | None = None


class NamedEntryRequest(StorageFields):
    """Fields of create/directory and create/file."""

    path: Text
    name: Text


class SaveRequest(StorageFields):
    """Fields of save."""

    path: Text
    contents: Text
    encoding: Text = "utf-8"


class PathRequest(StorageFields):
    """A call with a path and nothing else."""

    path: Text


class OptionalPathRequest(StorageFields):
    """A call whose path may be absent."""

    path: Text | None = None


class ReplicationRequest(StorageFields):
    """Fields of set_replication and replication."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"path": ("path", "src_path")}

    path: Text
    replication_factor: Annotated[int, Whole(1, 512)]


class PathsRequest(StorageFields):
    """A call that may name many paths."""

    REPEATABLE: ClassVar[frozenset[str]] = frozenset({"path"})

    path: Items


class DeleteRequest(PathsRequest):
    """Fields of rmtree, delete and delete/bulk. Without `skip_trash` the store decides."""

    skip_trash: Flag | None = None
    wait: Annotated[int, Whole(0, MAX_WAIT_S)] | None = None


class ChownRequest(PathsRequest):
    """Fields of chown."""

    user: Text = ""
    group: Text = ""
    user_other: Text = ""
    group_other: Text = ""
    recursive: Flag = False

    def chosen(self) -> tuple[str | None, str | None]:
        """Owner and group to be set. Raises MissingParameter when neither is given."""
        owner = self.user_other if self.user == _OTHER else self.user
        group = self.group_other if self.group == _OTHER else self.group
        if not owner and not group:
            raise MissingParameter("user or group is required.")
        return owner or None, group or None


class PermissionFlags(Fields):
    """Who may what; what is absent is false."""

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
        """The flags as permission bits."""
        names = [f"{who}_{what}" for who in ("user", "group", "other") for what in ("read", "write", "execute")]
        bits = sum(1 << (8 - position) for position, name in enumerate(names) if getattr(self, name))
        return bits | (_STICKY if self.sticky else 0)


def _octal(value: str) -> str:
    if not _MODE.fullmatch(value):
        raise must("be three octal digits, with 1 before them for the sticky bit.")
    return value


class ChmodRequest(PathsRequest, PermissionFlags):
    """Fields of chmod: `permission`, the flags as fields of their own, or `mode`."""

    permission: Json[PermissionFlags] | None = None
    mode: Annotated[Text, AfterValidator(_octal)] | None = None
    recursive: Flag = False

    def permissions(self) -> int:
        """The bits to be set. Raises MissingParameter (none given), conflicting_parameters (two forms)."""
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
            raise conflicting_parameters(f"{' and '.join(forms)} are given with different values.")
        return next(iter(forms.values()))
