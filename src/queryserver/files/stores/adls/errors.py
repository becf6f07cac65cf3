"""Converts failures of Azure storage by their `x-ms-error-code` ("Common REST API error codes", DFS and Blob)."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from queryserver import errors

UNREACHABLE = "Unreachable"
"""The error code used here for an account that does not respond."""

_BAD_LOGIN = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"})
_BY_STATUS: dict[int, tuple[type[errors.QueryServerError], str]] = {
    401: (errors.StorageError, "The store rejected the credentials of this service."),
    403: (errors.PermissionDenied, "The store denied access to {path}."),
    404: (errors.PathNotFound, "{path} does not exist."),
    412: (errors.EntryChanged, "{path} was modified concurrently."),
    429: (errors.StorageUnavailable, "The store is busy."),
    500: (errors.StorageUnavailable, "The store reported an internal error."),
    503: (errors.StorageUnavailable, "The store is busy."),
    504: (errors.StorageUnavailable, "The store did not respond in time."),
    507: (errors.StorageError, "The store has no space left."),
}
_TABLE: tuple[tuple[type[errors.QueryServerError], str, str], ...] = (
    (
        *(errors.PathNotFound, "{path} does not exist."),
        """BlobNotFound ContainerNotFound FilesystemNotFound PathNotFound ResourceNotFound SourcePathNotFound
        RenameDestinationParentPathNotFound""",
    ),
    (
        *(errors.PathExists, "{path} exists."),
        "BlobAlreadyExists ContainerAlreadyExists FilesystemAlreadyExists PathAlreadyExists ResourceAlreadyExists",
    ),
    (errors.DirectoryNotEmpty, "{path} is not empty.", "DirectoryNotEmpty"),
    (
        *(errors.EntryChanged, "{path} was modified concurrently."),
        "ConditionNotMet TargetConditionNotMet SourceConditionNotMet InvalidBlockList",
    ),
    (errors.EntryChanged, "{path} is leased by another client.", "LeaseIdMissing"),
    (errors.StorageUnavailable, "{path} is being deleted.", "ContainerBeingDeleted FilesystemBeingDeleted"),
    (errors.NotAFile, "{path} is not a file.", "ResourceTypeMismatch"),
    (errors.NotADirectory, "A parent of {path} is a file.", "PathConflict"),
    (
        errors.VerificationFailed,
        "The stored bytes do not match the bytes that were sent.",
        "InvalidFlushPosition Md5Mismatch",
    ),
    (errors.InvalidName, "The store does not support the name {path}.", "InvalidResourceName"),
    # The credentials of queryserver are wrong, which is unrelated to the caller's permissions.
    (*_BY_STATUS[401], " ".join(_BAD_LOGIN)),
    (errors.StoreQuotaExceeded, "The quota of the account is exhausted.", "QuotaExceeded AccountCapacityExceeded"),
    (*_BY_STATUS[507], "InsufficientStorage"),
    (*_BY_STATUS[503], "ServerBusy"),
    (*_BY_STATUS[504], "OperationTimedOut"),
    (*_BY_STATUS[500], "InternalError"),
    (errors.StorageUnavailable, "The store cannot be reached.", UNREACHABLE),
)
_KINDS: Mapping[str, tuple[type[errors.QueryServerError], str]] = {
    code: (kind, text) for kind, text, codes in _TABLE for code in codes.split()
}
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class AzureFailure(Exception):
    """An error response, or no response at all (code UNREACHABLE)."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code or str(status))
        self.status = status
        self.code = code
        self._kind = _KINDS.get(code, (None,))[0]

    @property
    def is_missing(self) -> bool:
        """Whether the requested object does not exist."""
        return self._kind is errors.PathNotFound or (self.status == 404 and not self.code)

    @property
    def is_denial(self) -> bool:
        """Whether the credentials are valid but lack a permission."""
        return self.status == 403 and self.code not in _BAD_LOGIN

    @property
    def is_taken(self) -> bool:
        """Whether the name is already taken, or another condition of the request was not met."""
        return self._kind is errors.PathExists or self.status == 412

    @property
    def is_retryable(self) -> bool:
        """Whether a read may succeed if it is retried."""
        return self.code == UNREACHABLE or self.status in _RETRIED


@contextmanager
def unless_missing() -> Generator[None]:
    """Leave the block without an error if an AzureFailure reports that an object is missing."""
    try:
        yield
    except AzureFailure as failure:
        if not failure.is_missing:
            raise


@contextmanager
def azure_errors(path: str) -> Generator[None]:
    """Convert AzureFailure to a domain error about `path`, which is relative to the root of the store."""
    try:
        yield
    except AzureFailure as failure:
        kind, text = _KINDS.get(failure.code) or _BY_STATUS.get(failure.status) or (errors.StorageError, "")
        # The messages from the service are not used, because they contain request ids and possibly the account name.
        text = text or f"The store rejected the request for {{path}} ({failure.code or failure.status})."
        raise kind(text.format(path=f"abfs://{path}")) from failure
