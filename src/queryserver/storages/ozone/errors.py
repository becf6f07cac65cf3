"""What Ozone's gateway answers when it fails. Ozone has one exception for nearly everything; its text tells."""

from queryserver.domain.errors.base import PermissionDenied, QueryServerError
from queryserver.domain.errors.files import (
    InvalidName,
    PathExists,
    PathNotFound,
    StorageUnavailable,
    StoreQuotaExceeded,
)
from queryserver.storages.webhdfs.errors import RemoteFailure, told

_OZONE = frozenset({"OMException", "IOException"})
_BY_TEXT: tuple[tuple[tuple[str, ...], type[QueryServerError]], ...] = (
    (("already exists",), PathExists),
    (("permission", "doesn't have", "not authorized", "only admin"), PermissionDenied),
    (("quota",), StoreQuotaExceeded),
    (("bucket name", "volume name", "bucket or volume"), InvalidName),
    (("not found", "doesn't exist", "does not exist"), PathNotFound),
    (("safe mode", "safemode", "not the leader", "not ready"), StorageUnavailable),
)


def error_of(remote: RemoteFailure, path: str) -> QueryServerError:
    """As a domain error about `path`, which is relative to the root of the service."""
    if remote.name in _OZONE:
        text = remote.message.lower()
        for words, kind in _BY_TEXT:
            if any(word in text for word in words):
                return kind(told(remote.message))
    return remote.error(path)
