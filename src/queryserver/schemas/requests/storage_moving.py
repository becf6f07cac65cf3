"""Fields of rename, move and copy, and of the calls about long operations (Contract storage 7)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from queryserver.schemas.fields import Flag, Text, Whole
from queryserver.schemas.requests.given import Items, StorageFields
from queryserver.schemas.requests.storage_changing import MAX_WAIT_S

_TO = ("dest_path", "destination_path", "dest")
_FROM = ("src_path", "source_path")


class RenameRequest(StorageFields):
    """Fields of rename. After `wait` seconds the answer comes and the work goes on; without it, at the end."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"src_path": _FROM, "dest_path": _TO}

    src_path: Text
    dest_path: Text
    overwrite: Flag = False
    wait: Annotated[int, Whole(0, MAX_WAIT_S)] | None = None


class MoveRequest(StorageFields):
    """Fields of move and copy; several sources need a directory."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"src_path": _FROM, "dest_path": _TO}
    REPEATABLE: ClassVar[frozenset[str]] = frozenset({"src_path"})

    src_path: Items
    dest_path: Text
    overwrite: Flag = False
    wait: Annotated[int, Whole(0, MAX_WAIT_S)] | None = None


class OperationStatusParameters(StorageFields):
    """Which operation is asked for."""

    id: Text
