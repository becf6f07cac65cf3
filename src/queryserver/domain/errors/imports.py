"""What goes wrong with imports (Contract importer 2.2). A file that is wrong is the caller's business: 400."""

from queryserver.domain.errors.access import PermissionDenied
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.calls import InvalidRequest


class ImporterDenied(PermissionDenied):
    """The importer is switched off, or the caller lacks the right to it."""


class ImportFileNotFound(InvalidRequest):
    """No such file, or not the caller's: the two are not told apart (Contract importer 2.7)."""

    code = "file_not_found"

    def __init__(self) -> None:
        super().__init__("File not found.")


class ImportFileDenied(InvalidRequest):
    """The store refuses the file to the caller."""

    code = "permission_denied"


class ImportFileTooLarge(InvalidRequest):
    """Above the upload limit."""

    code = "file_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"File too large. Maximum file size is {round(limit_bytes / 1024**2)} MiB.")


class ExtensionNotAllowed(InvalidRequest):
    """The settings forbid files of this extension."""

    code = "extension_not_allowed"


class NotMultipart(InvalidRequest):
    """An upload of another media type."""

    code = "not_multipart"


class UploadQuotaExceeded(InvalidRequest):
    """The caller has too many files in the upload area, or too large ones."""

    code = "quota_exceeded"


class FileEmpty(InvalidRequest):
    """Nothing in it."""

    code = "file_empty"


class UnsupportedFormat(InvalidRequest):
    """Neither delimited text nor a workbook."""

    code = "unsupported_format"

    def __init__(self) -> None:
        super().__init__("Unable to detect file format.")


class FormatMismatch(InvalidRequest):
    """The file is not of the kind that the call says."""

    code = "format_mismatch"


class FileEncrypted(InvalidRequest):
    """A workbook with a password."""

    code = "file_encrypted"


class FileCorrupt(InvalidRequest):
    """A workbook that cannot be read."""

    code = "file_corrupt"


class FileTooComplex(InvalidRequest):
    """A workbook beyond the limits of what is unpacked, parsed or waited for."""

    code = "file_too_complex"


class SheetRequired(InvalidRequest):
    """A workbook without the name of the sheet."""

    code = "sheet_required"

    def __init__(self) -> None:
        super().__init__("Sheet name is required for Excel files.")


class SheetNotFound(InvalidRequest):
    """No worksheet of that name."""

    code = "sheet_not_found"


class SeparatorRequired(InvalidRequest):
    """A delimited file of no known kind without its separator."""

    code = "separator_required"

    def __init__(self) -> None:
        super().__init__("Field separator is required for delimited files.")


class EncodingFailed(InvalidRequest):
    """The file is not in the encoding that the call says."""

    code = "encoding_error"


class TooManyColumns(InvalidRequest):
    """More columns than a table may have."""

    code = "too_many_columns"


class RecordTooLong(InvalidRequest):
    """A field or a record beyond the limits."""

    code = "record_too_long"


class InvalidDialect(InvalidRequest):
    """A dialect that the importer does not write."""

    code = "invalid_dialect"


class InvalidColumns(InvalidRequest):
    """The columns of a table that cannot be made so."""

    code = "invalid_columns"


class ImportConnectorNotFound(InvalidRequest):
    """No such connector, or not the caller's: the two are not told apart."""

    code = "connector_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no connector {name[:100]}.")


class ImportTargetDenied(InvalidRequest):
    """The connector takes no tables of this caller: it is read-only, or wants a login that was not given."""

    code = "permission_denied"


class TableExists(InvalidRequest):
    """The table of an import that was to be new."""

    code = "table_exists"


class ReplacingNotSupported(InvalidRequest):
    """`if_exists=replace` where the engine renames no tables."""

    code = "not_supported"

    def __init__(self, dialect: str) -> None:
        super().__init__(f"Tables of {dialect} cannot be replaced, for they cannot be renamed: drop the old one first.")


class DetectionFailed(QueryServerError):
    """A fault of ours while a file was looked at."""

    code = "detection_error"
