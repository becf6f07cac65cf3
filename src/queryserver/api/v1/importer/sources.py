"""The file that a call of the importer names (Contract importer 2.7, 2.8)."""

from contextlib import AbstractAsyncContextManager

from queryserver.api.v1.importer.calls import ImporterCall
from queryserver.domain.importing import Origin
from queryserver.domain.storage_paths import repaired
from queryserver.schemas.requests import HeaderParameters, MetadataParameters
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.samples import ReadingOptions


def asked_file(
    call: ImporterCall, asked: MetadataParameters | HeaderParameters
) -> AbstractAsyncContextManager[ImportFile]:
    """The file of a GET call. Raises as `ImportSources.opened`."""
    # Paths of GET calls may have been encoded twice (Contract storage 2.2); references never hold what is repaired.
    remote = asked.import_type is Origin.REMOTE
    file_path = repaired(asked.file_path) if remote else asked.file_path
    return call.services.importing.sources.opened(call.user, asked.import_type, file_path)


def asked_reading(asked: HeaderParameters) -> ReadingOptions:
    """How the file of a call is to be read. Raises SheetRequired, InvalidParameter."""
    return ReadingOptions.given(
        asked.file_type,
        sheet_name=asked.sheet_name,
        field_separator=asked.field_separator,
        quote_char=asked.quote_char,
        record_separator=asked.record_separator,
        encoding=asked.encoding,
    )
