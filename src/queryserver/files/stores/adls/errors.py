"""Failures of Azure storage as domain errors, by `x-ms-error-code` ("Common REST API error codes", DFS and Blob)."""

from collections.abc import Generator
from contextlib import contextmanager

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    ChangedMeanwhile,
    DirectoryNotEmpty,
    InvalidName,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    VerificationFailed,
)

UNREACHABLE = "Unreachable"
"""Our own code for an account that does not answer."""

_NOT_FOUND = frozenset(
    {
        *("BlobNotFound", "ContainerNotFound", "FilesystemNotFound", "PathNotFound", "ResourceNotFound"),
        *("SourcePathNotFound", "RenameDestinationParentPathNotFound"),
    }
)
_EXISTS = frozenset(
    {
        *("BlobAlreadyExists", "ContainerAlreadyExists", "FilesystemAlreadyExists", "PathAlreadyExists"),
        "ResourceAlreadyExists",
    }
)
_BAD_LOGIN = ("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation")
_KINDS: dict[str, tuple[type[QueryServerError], str]] = {
    **dict.fromkeys(_NOT_FOUND, (PathNotFound, "{path} does not exist.")),
    **dict.fromkeys(_EXISTS, (PathExists, "{path} exists.")),
    "DirectoryNotEmpty": (DirectoryNotEmpty, "{path} is not empty."),
    "ConditionNotMet": (ChangedMeanwhile, "{path} was changed meanwhile."),
    "TargetConditionNotMet": (ChangedMeanwhile, "{path} was changed meanwhile."),
    "SourceConditionNotMet": (ChangedMeanwhile, "{path} was changed meanwhile."),
    "InvalidBlockList": (ChangedMeanwhile, "{path} was changed meanwhile."),
    "LeaseIdMissing": (ChangedMeanwhile, "{path} is leased by another program."),
    "ContainerBeingDeleted": (StorageUnavailable, "{path} is being deleted."),
    "FilesystemBeingDeleted": (StorageUnavailable, "{path} is being deleted."),
    "ResourceTypeMismatch": (NotAFile, "{path} is not a file."),
    "PathConflict": (NotADirectory, "A part of {path} is a file."),
    "InvalidFlushPosition": (VerificationFailed, "The store holds other bytes than were sent."),
    "Md5Mismatch": (VerificationFailed, "The store holds other bytes than were sent."),
    "InvalidResourceName": (InvalidName, "The store does not take the name {path}."),
    # Our own credentials are wrong: no caller can do anything about it, nor is it about what the caller may.
    **dict.fromkeys(_BAD_LOGIN, (StorageError, "The store refuses the credentials of this service.")),
    "QuotaExceeded": (StoreQuotaExceeded, "The quota of the account is used up."),
    "AccountCapacityExceeded": (StoreQuotaExceeded, "The quota of the account is used up."),
    "InsufficientStorage": (StorageError, "The store has no room left."),
    "ServerBusy": (StorageUnavailable, "The store is busy."),
    "OperationTimedOut": (StorageUnavailable, "The store does not answer in time."),
    "InternalError": (StorageUnavailable, "The store fails."),
    UNREACHABLE: (StorageUnavailable, "The store cannot be reached."),
}
_BY_STATUS: dict[int, tuple[type[QueryServerError], str]] = {
    401: (StorageError, "The store refuses the credentials of this service."),
    403: (PermissionDenied, "The store refuses access to {path}."),
    404: (PathNotFound, "{path} does not exist."),
    412: (ChangedMeanwhile, "{path} was changed meanwhile."),
    429: (StorageUnavailable, "The store is busy."),
    500: (StorageUnavailable, "The store fails."),
    503: (StorageUnavailable, "The store is busy."),
    504: (StorageUnavailable, "The store does not answer in time."),
    507: (StorageError, "The store has no room left."),
}
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class AzureFailure(Exception):
    """An answer that is none of the wanted ones, or no answer. `text` is the service's first line."""

    def __init__(self, status: int, code: str, text: str = "") -> None:
        super().__init__(code or str(status))
        self.status = status
        self.code = code
        self.text = text

    @property
    def is_missing(self) -> bool:
        """Whether it says that there is no such thing."""
        return self.code in _NOT_FOUND or (self.status == 404 and not self.code)

    @property
    def is_denial(self) -> bool:
        """Whether the login is good and lacks a right."""
        return self.status == 403 and self.code not in _BAD_LOGIN

    @property
    def is_taken(self) -> bool:
        """Whether a condition says that the name is taken."""
        return self.code in _EXISTS or self.status == 412

    @property
    def is_passing(self) -> bool:
        """Whether the same read may work a moment later."""
        return self.code == UNREACHABLE or self.status in _RETRIED


@contextmanager
def azure_errors(path: str) -> Generator[None]:
    """Every AzureFailure inside becomes a domain error about `path`, which is relative to the store's root."""
    try:
        yield
    except AzureFailure as failure:
        kind, text = _KINDS.get(failure.code) or _BY_STATUS.get(failure.status) or (StorageError, "")
        # Texts of the service hold request ids from their second line on, and may name the account in any.
        text = text or f"The store refused the call for {{path}} ({failure.code or failure.status})."
        raise kind(text.format(path=f"abfs://{path}")) from failure
