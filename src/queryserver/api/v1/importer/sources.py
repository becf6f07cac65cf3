"""The file that a call of the importer names (Contract importer 2.7, 2.8)."""

from contextlib import AbstractAsyncContextManager

from queryserver.api.v1.importer.calls import ImporterCall
from queryserver.domain.errors.base import MissingParameter
from queryserver.domain.errors.files import import_connector_not_found, invalid_dialect
from queryserver.domain.errors.statements import UnknownDialect
from queryserver.domain.import_types import PREVIEW_DIALECTS
from queryserver.domain.importing import RECORD_TYPES, Origin
from queryserver.domain.storage_paths import repaired
from queryserver.formats.cell_types.written_forms import NOT_GIVEN, GivenFormats
from queryserver.schemas.requests import (
    ColumnParameters,
    HeaderParameters,
    MetadataParameters,
    PreviewParameters,
    SqlTypesParameters,
)
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
    """How the file of a call is to be read. Raises sheet_required, InvalidParameter."""
    return ReadingOptions.given(
        asked.file_type,
        sheet_name=asked.sheet_name,
        field_separator=asked.field_separator,
        quote_char=asked.quote_char,
        record_separator=asked.record_separator,
        encoding=asked.encoding,
        formats=_formats(asked),
    )


def asked_header(asked: ColumnParameters) -> bool:
    """Whether the first row names the columns; files of records name them. Raises MissingParameter."""
    if asked.file_type in RECORD_TYPES:
        return True
    if asked.has_header is None:
        raise MissingParameter("has_header is required.")
    return asked.has_header


def asked_dialect(call: ImporterCall, asked: PreviewParameters | SqlTypesParameters) -> str:
    """The dialect that types are named in. Raises MissingParameter, import_connector_not_found, invalid_dialect."""
    if asked.sql_dialect is not None:
        return asked.sql_dialect
    if asked.connector is None:
        raise MissingParameter("sql_dialect is required.")
    try:
        dialect = call.services.connectors.resolve(call.user, asked.connector).dialect
    except UnknownDialect:
        raise import_connector_not_found(asked.connector) from None
    if dialect not in PREVIEW_DIALECTS:
        raise invalid_dialect(
            f"The types of {dialect} are not known here. Valid values of sql_dialect: {', '.join(PREVIEW_DIALECTS)}."
        )
    return dialect


def _formats(asked: HeaderParameters) -> GivenFormats:
    if not isinstance(asked, ColumnParameters):
        return NOT_GIVEN
    return GivenFormats(asked.date_format, asked.number_format)
