"""Converts WebHDFS JSON to file statuses, content summaries and errors. Times in WebHDFS are in milliseconds."""

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, overload

import httpx

from queryserver import errors
from queryserver.files.model import ContentSummary, EntryKind, FileStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: Mapping[str, EntryKind] = {"DIRECTORY": EntryKind.DIRECTORY, "FILE": EntryKind.FILE, "SYMLINK": EntryKind.LINK}
_SUMMARY_FIELDS = frozenset(
    {"directoryCount", "fileCount", "length", "spaceConsumed", "quota", "spaceQuota", "replication"}
)


def file_status(found: Mapping[str, Any], path: str) -> FileStatus:
    """Convert the WebHDFS `FileStatus` of the entry at `path`. Raises StorageError if it is invalid."""
    try:
        kind = _KINDS.get(found["type"], EntryKind.UNKNOWN)
        return FileStatus(
            path=path,
            kind=kind,
            size_bytes=0 if kind is EntryKind.DIRECTORY else int(found["length"]),
            modified_at=_time(found["modificationTime"]),
            permissions=int(found["permission"], 8) & 0o1777,
            accessed_at=_time(found.get("accessTime", 0)),
            owner=found.get("owner", ""),
            group=found.get("group", ""),
            has_acl=bool(found.get("aclBit", False)),
            block_size=int(found.get("blockSize", 0)),
            replication=int(found.get("replication", 0)),
            file_id=str(found.get("fileId") or ""),
        )
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise errors.StorageError("The store sent an invalid file status.") from error


class ListedStatuses(Sequence[FileStatus]):
    """Entries that are converted only when accessed: a page typically shows only 30 of the 1000 entries in a batch."""

    def __init__(self, listed: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self._listed = listed

    def __len__(self) -> int:
        return len(self._listed)

    @overload
    def __getitem__(self, index: int) -> FileStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FileStatus]: ...
    def __getitem__(self, index: int | slice) -> FileStatus | Sequence[FileStatus]:
        if isinstance(index, slice):
            return [_status_of(entry) for entry in self._listed[index]]
        return _status_of(self._listed[index])

    def __iter__(self) -> Iterator[FileStatus]:
        return map(_status_of, self._listed)


def _status_of(entry: tuple[str, Mapping[str, Any]]) -> FileStatus:
    path, found = entry
    return file_status(found, path)


def content_summary(found: Mapping[str, Any]) -> ContentSummary:
    """Convert a WebHDFS `ContentSummary`. Raises StorageError if it is invalid."""
    try:
        return ContentSummary(
            directory_count=int(found["directoryCount"]),
            file_count=int(found["fileCount"]),
            length_bytes=int(found["length"]),
            space_consumed_bytes=int(found["spaceConsumed"]),
            quota=int(found.get("quota", -1)),
            space_quota_bytes=int(found.get("spaceQuota", -1)),
            extra_fields={name: value for name, value in found.items() if name not in _SUMMARY_FIELDS},
        )
    except (LookupError, ValueError, TypeError) as error:
        raise errors.StorageError("The store sent an invalid content summary.") from error


def _time(milliseconds: int) -> datetime | None:
    """Return the time, or None if it is out of range, because clients can set file times to arbitrary values."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


_MAX_MESSAGE_CHARACTERS = 500
_BUSY = frozenset({429, 502, 503, 504})
_UNAUTHORIZED = 401

# The keys are exception names without the package. A non-empty text replaces the message from the store.
_KINDS_BY_EXCEPTION: Mapping[str, tuple[type[errors.QueryServerError], str]] = {
    "FileNotFoundException": (errors.PathNotFound, "{path} does not exist."),
    "FileAlreadyExistsException": (errors.PathExists, "{path} already exists."),
    "AlreadyBeingCreatedException": (errors.PathExists, "{path} is being written by another client."),
    "PathIsNotEmptyDirectoryException": (errors.DirectoryNotEmpty, "{path} is not empty."),
    "ParentNotDirectoryException": (errors.NotADirectory, "A parent of {path} is a file."),
    "PathIsNotDirectoryException": (errors.NotADirectory, "{path} is not a directory."),
    "UnresolvedPathException": (
        errors.SymlinkNotFollowed,
        "{path} contains a symbolic link; symbolic links are not followed.",
    ),
    "AccessControlException": (errors.PermissionDenied, ""),
    "SnapshotAccessControlException": (errors.PermissionDenied, ""),
    "AuthorizationException": (errors.PermissionDenied, ""),
    "SecurityException": (errors.PermissionDenied, ""),
    "NSQuotaExceededException": (errors.StoreQuotaExceeded, ""),
    "DSQuotaExceededException": (errors.StoreQuotaExceeded, ""),
    "QuotaExceededException": (errors.StoreQuotaExceeded, ""),
    "QuotaByStorageTypeExceededException": (errors.StoreQuotaExceeded, ""),
    "MaxDirectoryItemsExceededException": (errors.StoreQuotaExceeded, ""),
    "PathComponentTooLongException": (errors.InvalidPath, ""),
    "InvalidPathException": (errors.InvalidPath, ""),
    "SafeModeException": (errors.StorageUnavailable, "The store is in safe mode."),
    "StandbyException": (errors.StorageUnavailable, "The name node is in standby."),
    "RetriableException": (errors.StorageUnavailable, "The store is not ready."),
    "ServerTooBusyException": (errors.StorageUnavailable, "The store is too busy."),
    "ConnectException": (errors.StorageUnavailable, "A component of the store is not responding."),
    "UnsupportedOperationException": (errors.NotSupported, "The store does not support this operation."),
}
# These failures share exception names with others, so they are recognized by a part of their message.
_KINDS_BY_MESSAGE: tuple[tuple[str, type[errors.QueryServerError], str], ...] = (
    ("is not a directory)", errors.NotADirectory, "A parent of {path} is a file."),
    ("Path is not a file", errors.NotAFile, "{path} is not a file."),
    ("is not a valid DFS filename", errors.InvalidPath, "The store does not support this name."),
    ("must both be directories", errors.PathExists, "The target exists and is not a file."),
    ("Name node is in safe mode", errors.StorageUnavailable, "The store is in safe mode."),
)
TRY_NEXT_NODE = frozenset({"StandbyException", "RetriableException"})
"""If a name node reports one of these exceptions, the next name node is tried."""
BAD_TOKEN = frozenset({"InvalidToken", "AuthenticationException", "TokenExpiredException"})

_CLASS_NAME = re.compile(r"(?:[A-Za-z_$][\w$]*\.){2,}[A-Z][\w$]*(?:\(\S*\))?:?\s*|\b[A-Z]\w*(?:Exception|Error):\s*")
_HOST = re.compile(
    r"(?:[\w.-]+/)?\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|\b[\w-]+(?:\.[\w-]+)+:\d{2,5}\b|\b[\w-]+:\d{4,5}\b|https?://\S+"
)


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """A failure that the store has reported. `name` is the exception name; empty if the response has none."""

    status: int
    name: str
    message: str

    @classmethod
    def parse(cls, status: int, body: bytes) -> "RemoteFailure":
        try:
            remote = json.loads(body)["RemoteException"]
            return cls(status, str(remote["exception"]).rpartition(".")[2], str(remote.get("message") or ""))
        except (ValueError, LookupError, TypeError, AttributeError):
            return cls(status, "", "")

    def error(self, path: str) -> errors.QueryServerError:
        """Convert the failure to a domain error about `path`, which is relative to the root."""
        for part, kind, text in _KINDS_BY_MESSAGE:
            if part in self.message:
                return kind(text.format(path=f"/{path}"))
        if known := _KINDS_BY_EXCEPTION.get(self.name):
            kind, text = known
            return kind(text.format(path=f"/{path}") or safe_message(self.message))
        if self.name:
            return errors.StorageError(safe_message(self.message))
        if self.status == _UNAUTHORIZED:
            return errors.StorageError("The store rejected the login of this service.")
        if self.status in _BUSY:
            return errors.StorageUnavailable("The store is not ready.")
        return errors.StorageError(f"The store failed with status {self.status}.")


def safe_message(message: str) -> str:
    """Return the first line of a message, without class and host names and truncated to 500 characters."""
    first = message.strip().partition("\n")[0]
    first = _HOST.sub("the store", _CLASS_NAME.sub("", first)).strip()
    return first[:_MAX_MESSAGE_CHARACTERS] or "The store failed."


@contextmanager
def transport_errors() -> Generator[None]:
    """Convert httpx errors to domain errors."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise errors.StorageUnavailable("The store did not respond in time.") from error
    except httpx.TransportError as error:
        raise errors.StorageUnavailable("The store is unreachable or closed the connection.") from error
    except (httpx.InvalidURL, httpx.StreamError, httpx.DecodingError) as error:
        raise errors.StorageError("The store sent an invalid response.") from error
