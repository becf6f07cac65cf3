"""Errors for files (Contract storage 3) and imports (Contract importer 2.2). Responses include their `details`."""

from queryserver.errors.base import (
    Conflict,
    ErrorKind,
    InvalidRequest,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    QueryServerError,
)

# Invalid calls and missing permissions


class InvalidPath(InvalidRequest, code="invalid_path"):
    """A storage path leaves its root or is malformed."""


class InvalidName(InvalidRequest, code="invalid_name"): ...


class UnknownScheme(InvalidRequest, code="unknown_scheme"): ...


class StorageNotConfigured(InvalidRequest, code="storage_not_configured"):
    """The scheme is known, but no store is configured for it."""


class UnknownAuthority(InvalidRequest, code="unknown_authority"):
    """The host, account or service in the path is not the configured one."""


class NotADirectory(InvalidRequest, code="not_a_directory"): ...


class NotAFile(InvalidRequest, code="not_a_file"): ...


class TargetInsideSource(InvalidRequest, code="target_inside_source"):
    """A tree cannot be moved or copied into itself."""


same_path = ErrorKind(InvalidRequest, "same_path")
root_not_allowed = ErrorKind(InvalidRequest, "root_not_allowed")
not_in_trash = ErrorKind(InvalidRequest, "not_in_trash")
extension_not_permitted = ErrorKind(InvalidRequest, "extension_not_permitted")
extension_restricted = ErrorKind(InvalidRequest, "extension_restricted")
upload_aborted = ErrorKind(InvalidRequest, "upload_aborted")


class ImpersonationNotAllowed(PermissionDenied, code="impersonation_not_allowed"): ...


class SymlinkNotFollowed(PermissionDenied, code="symlink_not_followed"): ...


storage_access_denied = ErrorKind(PermissionDenied, "storage_access_denied")
upload_disabled = ErrorKind(PermissionDenied, "upload_disabled")
bucket_listing_denied = ErrorKind(PermissionDenied, "bucket_listing_denied", "Bucket listing is not allowed: {}")


# Missing entries, and entries in a state that does not permit the call


class PathNotFound(NotFound, code="path_not_found"): ...


class UploadNotFound(NotFound, code="upload_not_found"): ...


class RangeNotSatisfiable(QueryServerError, code="range_not_satisfiable"):
    """The requested byte range does not overlap the file."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("The requested range is outside the file.")
        self.size_bytes = size_bytes


class PathExists(Conflict, code="already_exists"): ...


class AmbiguousName(Conflict, code="ambiguous_name"):
    """A file and a directory in a flat store have the same name (Contract storage 2.2.8)."""


class DirectoryNotEmpty(Conflict, code="directory_not_empty"):
    """The directory or bucket is not empty. Directories can be deleted recursively, but buckets cannot."""


class EntryChanged(Conflict):
    """The entry was changed after the operation began."""


class OperationInProgress(Conflict, code="operation_in_progress"): ...


class StoreQuotaExceeded(Conflict, code="quota_exceeded"): ...


page_not_found = ErrorKind(NotFound, "page_not_found")
already_in_trash = ErrorKind(Conflict, "already_in_trash")
contains_trash = ErrorKind(Conflict, "contains_trash")
part_conflict = ErrorKind(Conflict, "part_conflict")
upload_incomplete = ErrorKind(Conflict, "upload_incomplete")


# Sizes and contents


class FileTooComplex(InvalidRequest, code="file_too_complex"):
    """Processing the file takes more memory or time than permitted, or the file has forbidden content."""


class DecompressionLimit(PayloadTooLarge, code="decompression_limit"):
    """Reading the requested range of the file would require decompressing too many bytes."""


too_many_entries = ErrorKind(PayloadTooLarge, "too_many_entries")
too_many_parts = ErrorKind(PayloadTooLarge, "too_many_parts")
# The argument is the limit `max_file_size_upload_limit` in bytes.
file_too_large = ErrorKind(PayloadTooLarge, "file_too_large", "File exceeds maximum allowed size of {} bytes.")


class VerificationFailed(QueryServerError, code="verification_failed"):
    """The stored bytes differ in size or digest from the bytes sent."""


class DecompressionFailed(VerificationFailed, code="decompression_failed"):
    """The compressed data is corrupt or in another format."""


not_text = ErrorKind(VerificationFailed, "not_text")


# Stores


class CodecNotAvailable(NotSupported, code="codec_not_available"): ...


trash_not_supported = ErrorKind(NotSupported, "trash_not_supported")


class StorageError(QueryServerError, code="storage_error"):
    """A store failed or is full."""


class StorageUnavailable(StorageError, code="storage_unavailable"):
    """A store is unreachable, in safe mode, read-only, or throttling requests."""


class InsufficientStorage(StorageError, code="insufficient_storage"):
    """One of this server's disks is low on free space. Reading and deleting still work."""

    def __init__(self) -> None:
        super().__init__("The server's disk is almost full. Delete files, or retry later.")


# Imports. Problems with a file are reported as InvalidRequest, status 400.


class ImporterDenied(PermissionDenied):
    """The importer is disabled, or the caller lacks the right to use it."""


class FileCorrupt(InvalidRequest, code="file_corrupt"): ...


class UnsupportedFormat(InvalidRequest, code="unsupported_format"):
    """The file is neither delimited text nor a workbook."""

    def __init__(self) -> None:
        super().__init__("Unable to detect file format.")


class DetectionFailed(QueryServerError, code="detection_error"):
    """An internal error occurred while reading a file for its preview."""


import_file_denied = ErrorKind(InvalidRequest, "permission_denied")
extension_not_allowed = ErrorKind(InvalidRequest, "extension_not_allowed")
not_multipart = ErrorKind(InvalidRequest, "not_multipart")
upload_quota_exceeded = ErrorKind(InvalidRequest, "quota_exceeded")
file_empty = ErrorKind(InvalidRequest, "file_empty")
format_mismatch = ErrorKind(InvalidRequest, "format_mismatch")
file_encrypted = ErrorKind(InvalidRequest, "file_encrypted")
sheet_required = ErrorKind(InvalidRequest, "sheet_required")
sheet_not_found = ErrorKind(InvalidRequest, "sheet_not_found")
separator_required = ErrorKind(InvalidRequest, "separator_required")
encoding_failed = ErrorKind(InvalidRequest, "encoding_error")
too_many_columns = ErrorKind(InvalidRequest, "too_many_columns")
record_too_long = ErrorKind(InvalidRequest, "record_too_long")
invalid_dialect = ErrorKind(InvalidRequest, "invalid_dialect")
invalid_columns = ErrorKind(InvalidRequest, "invalid_columns")
import_target_denied = ErrorKind(InvalidRequest, "permission_denied")
table_exists = ErrorKind(InvalidRequest, "table_exists")
replacing_not_supported = ErrorKind(InvalidRequest, "not_supported")
import_file_in_use = ErrorKind(InvalidRequest, "file_in_use", "An import that waits or runs uses this file.")
# The file does not exist or belongs to another user (Contract importer 2.7).
import_file_not_found = ErrorKind(InvalidRequest, "file_not_found", "File not found.")
# The connector does not exist or belongs to other users.
import_connector_not_found = ErrorKind(InvalidRequest, "connector_not_found", "Connector {:.100} does not exist.")
_import_file_too_large = ErrorKind(InvalidRequest, "file_too_large")


def import_file_too_large(limit_bytes: int) -> InvalidRequest:
    return _import_file_too_large(f"File too large. Maximum file size is {round(limit_bytes / 1024**2)} MiB.")
