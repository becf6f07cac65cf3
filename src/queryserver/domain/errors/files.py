"""What goes wrong with files (Contract storage 3). `details` are told to the client."""

from queryserver.domain.errors.access import PermissionDenied
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.calls import InvalidRequest, NotSupported, PayloadTooLarge
from queryserver.domain.errors.objects import Conflict, NotFound
from queryserver.domain.errors.parts import StorageError

# ------------------------------------------------------------------ the call is wrong


class InvalidPath(InvalidRequest):
    """A storage path leaves its root or cannot be a path."""

    code = "invalid_path"


class InvalidName(InvalidRequest):
    """A new entry cannot have this name (Contract storage 2.3)."""

    code = "invalid_name"


class UnknownScheme(InvalidRequest):
    """No store has this scheme."""

    code = "unknown_scheme"


class StorageNotConfigured(InvalidRequest):
    """The scheme is known, and this server has no such store."""

    code = "storage_not_configured"


class UnknownAuthority(InvalidRequest):
    """The path names another name node, account or service than the configured one."""

    code = "unknown_authority"


class NotADirectory(InvalidRequest):
    """A directory is needed and the entry is none."""

    code = "not_a_directory"


class NotAFile(InvalidRequest):
    """A file is needed and the entry is none."""

    code = "not_a_file"


class SamePath(InvalidRequest):
    """Source and target are one."""

    code = "same_path"


class TargetInsideSource(InvalidRequest):
    """A tree cannot become part of itself."""

    code = "target_inside_source"


class RootNotAllowed(InvalidRequest):
    """Roots, buckets and the parent of homes stay where they are."""

    code = "root_not_allowed"


class NotInTrash(InvalidRequest):
    """Only what lies in the trash can be restored."""

    code = "not_in_trash"


class ExtensionNotPermitted(InvalidRequest):
    """The extension is not on the list of permitted ones."""

    code = "extension_not_permitted"


class ExtensionRestricted(InvalidRequest):
    """The extension is on the list of forbidden ones."""

    code = "extension_restricted"


class UploadAborted(InvalidRequest):
    """The client left, or the body ends in the middle."""

    code = "upload_aborted"


class BodyTooSlow(QueryServerError):
    """The body arrives below 1 KiB/s for a minute."""

    code = "request_timeout"


class RangeNotSatisfiable(QueryServerError):
    """No byte of the file is in the range that was asked for."""

    code = "range_not_satisfiable"

    def __init__(self, size_bytes: int) -> None:
        super().__init__("The range is outside the file.")
        self.size_bytes = size_bytes


# ------------------------------------------------------------------ the caller may not


class StorageAccessDenied(PermissionDenied):
    """The caller lacks the right to the whole store."""

    code = "storage_access_denied"


class ImpersonationNotAllowed(PermissionDenied):
    """`doas` without the right."""

    code = "impersonation_not_allowed"


class UploadDisabled(PermissionDenied):
    """Uploads are switched off."""

    code = "upload_disabled"


class BucketListingDenied(PermissionDenied):
    """The store does not tell these credentials its buckets."""

    code = "bucket_listing_denied"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Bucket listing is not allowed: {reason}")


class SymlinkNotFollowed(PermissionDenied):
    """The path leads through a symbolic link."""

    code = "symlink_not_followed"


# ------------------------------------------------------------------ it is not there, or in another state


class PathNotFound(NotFound):
    """No file or directory of that path."""

    code = "path_not_found"


class PageNotFound(NotFound):
    """A page past the end of a listing."""

    code = "page_not_found"


class UploadNotFound(NotFound):
    """No such part upload for this caller."""

    code = "upload_not_found"


class PathExists(Conflict):
    """There is something of that name already."""

    code = "already_exists"


class DirectoryNotEmpty(Conflict):
    """A directory with entries is deleted only recursively, a bucket never."""

    code = "directory_not_empty"


class ChangedMeanwhile(Conflict):
    """The entry is no longer what it was when the work began."""


class OperationInProgress(Conflict):
    """The same operation runs already."""

    code = "operation_in_progress"


class AlreadyInTrash(Conflict):
    """What lies in the trash is not put there again."""

    code = "already_in_trash"


class ContainsTrash(Conflict):
    """The directory holds the trash itself."""

    code = "contains_trash"


class StoreQuotaExceeded(Conflict):
    """A quota of the store is used up."""

    code = "quota_exceeded"


class PartConflict(Conflict):
    """A part contradicts what came before."""

    code = "part_conflict"


class UploadIncomplete(Conflict):
    """Parts are missing; `details.missing_parts` names them."""

    code = "upload_incomplete"


# ------------------------------------------------------------------ it is too much, or not what it seems


class FileTooLarge(PayloadTooLarge):
    """Above `max_file_size_upload_limit`."""

    code = "file_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"File exceeds maximum allowed size of {limit_bytes} bytes.")


class TooManyEntries(PayloadTooLarge):
    """More entries than this call looks at or changes."""

    code = "too_many_entries"


class TooManyParts(PayloadTooLarge):
    """A multipart body of more than 32 parts."""

    code = "too_many_parts"


class DecompressionLimit(PayloadTooLarge):
    """Showing this part of the file would unpack too many bytes."""

    code = "decompression_limit"


class Unprocessable(QueryServerError):
    """The bytes are not what they should be."""

    code = "verification_failed"


class VerificationFailed(Unprocessable):
    """Size or digest of what was stored is not that of what was sent."""

    code = "verification_failed"


class NotText(Unprocessable):
    """The file, or this part of it, is no text of that encoding."""

    code = "not_text"


class DecompressionFailed(Unprocessable):
    """The compressed bytes are broken, or not of that codec."""

    code = "decompression_failed"


# ------------------------------------------------------------------ the store cannot, or fails


class TrashNotSupported(NotSupported):
    """The store has no trash."""

    code = "trash_not_supported"


class CodecNotAvailable(NotSupported):
    """This server lacks the library of that codec."""

    code = "codec_not_available"


class StorageUnavailable(StorageError):
    """A store cannot be reached, is in safe mode, read-only or throttling."""

    code = "storage_unavailable"


class StorageFull(StorageError):
    """A store has no room left."""


class InsufficientStorage(StorageFull):
    """A disk of this server is below the floor of free space; reading and deleting go on."""

    code = "insufficient_storage"

    def __init__(self) -> None:
        super().__init__("The disk of the server is almost full. Try again later, or delete files.")
