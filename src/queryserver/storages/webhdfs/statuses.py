"""Objects of WebHDFS's JSON as ours. Times are milliseconds there."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from queryserver.domain.errors.files import StorageError
from queryserver.domain.files import ContentSummary, EntryKind, FileStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: Mapping[str, EntryKind] = {
    "DIRECTORY": EntryKind.DIRECTORY,
    "FILE": EntryKind.FILE,
    "SYMLINK": EntryKind.LINK,
}
_SUMMARY_FIELDS = frozenset(
    {"directoryCount", "fileCount", "length", "spaceConsumed", "quota", "spaceQuota", "replication"}
)


def file_status(told: Mapping[str, Any], path: str) -> FileStatus:
    """The entry at `path`, from a `FileStatus`. Raises StorageError: it is none."""
    try:
        kind = _KINDS.get(told["type"], EntryKind.UNKNOWN)
        return FileStatus(
            path=path,
            kind=kind,
            size_bytes=0 if kind is EntryKind.DIRECTORY else int(told["length"]),
            modified_at=_time(told["modificationTime"]),
            permissions=int(told["permission"], 8) & 0o1777,
            accessed_at=_time(told.get("accessTime", 0)),
            owner=told.get("owner", ""),
            group=told.get("group", ""),
            has_acl=bool(told.get("aclBit", False)),
            block_size=int(told.get("blockSize", 0)),
            replication=int(told.get("replication", 0)),
            file_id=str(told.get("fileId") or ""),
        )
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise StorageError("The store told something else than the status of a file.") from error


class ToldStatuses(Sequence[FileStatus]):
    """Entries as the store told them, by their paths. Each is read when it is asked for: of a batch of a thousand, a
    page shows thirty.
    """

    def __init__(self, told: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self._told = told

    def __len__(self) -> int:
        return len(self._told)

    @overload
    def __getitem__(self, index: int) -> FileStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FileStatus]: ...
    def __getitem__(self, index: int | slice) -> FileStatus | Sequence[FileStatus]:
        """Raises StorageError: it is no entry."""
        if isinstance(index, slice):
            return [_status_of(entry) for entry in self._told[index]]
        return _status_of(self._told[index])

    def __iter__(self) -> Iterator[FileStatus]:
        return map(_status_of, self._told)


def _status_of(entry: tuple[str, Mapping[str, Any]]) -> FileStatus:
    path, told = entry
    return file_status(told, path)


def content_summary(told: Mapping[str, Any]) -> ContentSummary:
    """From a `ContentSummary`. Raises StorageError: it is none."""
    try:
        return ContentSummary(
            directory_count=int(told["directoryCount"]),
            file_count=int(told["fileCount"]),
            length_bytes=int(told["length"]),
            space_consumed_bytes=int(told["spaceConsumed"]),
            quota=int(told.get("quota", -1)),
            space_quota_bytes=int(told.get("spaceQuota", -1)),
            further={name: value for name, value in told.items() if name not in _SUMMARY_FIELDS},
        )
    except (LookupError, ValueError, TypeError) as error:
        raise StorageError("The store told something else than a summary.") from error


def _time(milliseconds: int) -> datetime | None:
    """None for a time that no calendar reaches: whoever may write a file may give it any."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
