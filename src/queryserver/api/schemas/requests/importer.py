"""Request fields of importer calls (Contract importer 2, 4 to 7).

Create models only with `parse_import`, which does not trim values, treats empty values as absent, and reports the first
invalid field in field order.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from queryserver.api.schemas.fields import (
    JSON_DEPTH,
    ConnectorReference,
    Fields,
    Flag,
    Integer,
    RequiredText,
    Text,
    TextOrInteger,
    as_domain_error,
    is_storable_text,
    max_json_depth_of,
    must,
    one_of,
    parse,
    parse_json_text,
    without_nulls,
)
from queryserver.api.schemas.requests.editor import IdempotencyHeader
from queryserver.errors.base import InvalidJson, InvalidParameter, InvalidRequest
from queryserver.errors.files import invalid_columns, invalid_dialect
from queryserver.formats.cell_types.value_formats import UnknownFormat, parse_date_format
from queryserver.formats.delimited.encodings import ENCODINGS, UTF_8_WITH_MARK
from queryserver.formats.table_files import MAX_SKIPPED_LINES, FileType
from queryserver.imports.model import Origin
from queryserver.platform.text import MAX_DEPTH, parse_json

_SHOWN_CHARACTERS = 100
_MAX_NULL_WORDS, _MAX_NULL_WORD = 100, 100
_NO_CHOICE = frozenset({"enum", "literal_error"})
_DIALECT = "sql_dialect"
_CHOICE = re.compile("'[^']+'|\"[^\"]+\"")

FileEncoding: TypeAlias = Annotated[Text, Field(json_schema_extra={"enum": [UTF_8_WITH_MARK, *ENCODINGS]})]
"""Encoding name, case-insensitive."""
OriginField: TypeAlias = Annotated[Origin, one_of(*Origin)]
FileTypeField: TypeAlias = Annotated[FileType, one_of(*FileType)]
PreviewDialect: TypeAlias = Literal[
    "duckdb", "hive", "impala", "mysql", "phoenix", "postgresql", "sparksql", "sqlite", "trino"
]
NumberForm: TypeAlias = Literal["1234.5", "1234,5", "1,234.5", "1.234,5", "1 234.5", "1 234,5", "1'234.5"]


def _date_form(value: str) -> str:
    try:
        parse_date_format(value)
    except UnknownFormat as error:
        raise must(f"be a date format such as %d/%m/%Y: {error}.") from None
    return value


def _null_words(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """Parse an array of strings, sent as a JSON array or as JSON text."""
    value = parse_json_text(value, info)
    words = cast("Sequence[Any]", value)
    if not isinstance(value, Sequence) or isinstance(value, str) or len(words) > _MAX_NULL_WORDS:
        raise must(f"be a JSON array of at most {_MAX_NULL_WORDS} strings.")
    if not all(isinstance(one, str) and is_storable_text(one) and len(one) <= _MAX_NULL_WORD for one in words):
        raise must(f"contain only strings of at most {_MAX_NULL_WORD} characters.")
    return tuple(words)


class ImportFields(Fields):
    """Fields of an importer call, in which an empty string means absent (Contract importer 2.3)."""


class MetadataParameters(ImportFields):
    file_path: RequiredText = Field(description="Reference of an upload, or path in a store.")
    import_type: OriginField
    encoding: FileEncoding | None = Field(default=None, description="Text encoding; by default detected.")


class DiscardRequest(ImportFields):
    file_path: RequiredText = Field(description="Reference of an upload.")


class HeaderParameters(ImportFields):
    """Query parameters of guess_header. Separators may be written with backslash escapes."""

    file_path: RequiredText = Field(description="Reference of an upload, or path in a store.")
    file_type: FileTypeField
    import_type: OriginField
    sheet_name: Text | None = Field(
        default=None, description="Name of the worksheet; required for workbooks, not allowed for other files."
    )
    field_separator: Text | None = Field(
        default=None, description="Field separator: 1 to 8 characters, raw or with backslash escapes."
    )
    quote_char: Text | None = Field(default=None, description='Quote character, or `\\0` for none; by default `"`.')
    record_separator: Text | None = Field(
        default=None, description="Record separator: 1 to 8 characters; by default a line feed."
    )
    encoding: FileEncoding | None = Field(default=None, description="Text encoding; by default detected.")
    skip_rows: Annotated[int, Integer(0, MAX_SKIPPED_LINES)] | None = Field(
        default=None,
        description="Number of lines or worksheet rows above the table, which are skipped; by default detected.",
    )
    comment: Text | None = Field(
        default=None,
        description="Prefix of comment lines: 1 to 8 characters, raw or with backslash escapes, or `\\0` for none; by"
        " default detected.",
    )
    escape: Text | None = Field(
        default=None,
        description="Character that escapes a following separator or quote, usually a backslash; `\\0` for none; by"
        " default detected.",
    )


class ColumnParameters(HeaderParameters):
    has_header: Flag | None = Field(
        default=None,
        description="Whether the first row contains column names. Required unless the records include names.",
    )
    date_format: Annotated[Text, AfterValidator(_date_form)] | None = Field(
        default=None,
        description="Format of dates or timestamps as in strftime, for example `%d/%m/%Y` or `%b %d %Y %H:%M`; by"
        " default detected if the first rows are unambiguous.",
    )
    number_format: NumberForm | None = Field(
        default=None,
        description="Number format: the number 1234.5 as written in the file; by default detected if the first rows are"
        " unambiguous.",
    )
    null_words: Annotated[tuple[str, ...] | None, BeforeValidator(_null_words)] = Field(
        default=None,
        description='Cell texts that mean NULL in all columns, as a JSON array such as `["NA", "--"]`; `[]` for none.'
        " By default, a text means NULL in a column whose other cells are all numbers, dates, times or booleans.",
    )


_DIALECT_OR_CONNECTOR = "SQL dialect of the types; by default that of the connector. Required without `connector`."


class PreviewParameters(ColumnParameters):
    sql_dialect: PreviewDialect | None = Field(default=None, description=_DIALECT_OR_CONNECTOR)
    connector: ConnectorReference | None = Field(default=None, description="Id or dialect of a connector.")


class SqlTypesParameters(ImportFields):
    sql_dialect: PreviewDialect | None = Field(default=None, description=_DIALECT_OR_CONNECTOR)
    connector: ConnectorReference | None = Field(default=None, description="Id or dialect of a connector.")


Model = TypeVar("Model", bound=Fields)


def parse_import(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """Parse the fields of an importer call. `max_json_depth` limits the nesting of JSON text in a field.

    Raises MissingParameter, InvalidParameter, invalid_dialect or InvalidJson with a message that names the field.
    """
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    try:
        return model.model_validate(given, context={JSON_DEPTH: max_json_depth})
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise _no_choice(problems[0]) if problems[0]["type"] in _NO_CHOICE else as_domain_error(problems) from None


def _no_choice(problem: ErrorDetails) -> InvalidRequest:
    name = ".".join(str(part) for part in problem["loc"])
    failure = invalid_dialect if name == _DIALECT else InvalidParameter
    shown = str(problem["input"])[:_SHOWN_CHARACTERS]
    valid = ", ".join(one[1:-1] for one in _CHOICE.findall(str(problem.get("ctx", {}).get("expected", ""))))
    return failure(f'"{shown}" is not a valid choice for {name}. Valid values: {valid}.')


_MAX_NAME_CHARACTERS = 128
_MAX_COLUMNS = 2_000


def _named(value: str) -> str:
    if len(value) > _MAX_NAME_CHARACTERS:
        raise must(f"have 1 to {_MAX_NAME_CHARACTERS} characters.")
    return value


class ImportColumn(Fields):
    """A column of the table. Omitted members are taken from the preview."""

    source: TextOrInteger = Field(description="Position of the column in the file, from 1, or its name in the preview.")
    name: Text | None = None
    type: Text | None = Field(
        default=None,
        description="Type in the dialect, as in the preview, or with precision or length, such as `numeric(12,2)` or"
        " `varchar(20)`.",
    )
    precision: Annotated[int, Integer()] | None = Field(default=None, description="Precision of DECIMAL: 1 to 38.")
    scale: Annotated[int, Integer()] | None = Field(default=None, description="Scale of DECIMAL: 0 to the precision.")
    nullable: Flag = Field(default=True, description="Whether the column allows NULL.")
    format: Text | None = Field(
        default=None,
        description="Format of dates or numbers in the column: a value of `date_format` or `number_format`.",
    )
    null_words: Annotated[tuple[str, ...] | None, BeforeValidator(_null_words)] = Field(
        default=None, description="Cell texts that mean NULL in the column; `[]` for none."
    )


def _columns(value: Any, info: ValidationInfo) -> tuple[ImportColumn, ...]:
    """Parse an array of columns, sent as a JSON array or as JSON text. Raises InvalidJson or invalid_columns."""
    if isinstance(value, str):
        try:
            value = parse_json(value, max_depth=max_json_depth_of(info))
        except InvalidJson as error:
            raise InvalidJson(f"columns is not valid: {error.message}") from None
    if not isinstance(value, Sequence) or not 1 <= len(columns := cast("Sequence[Any]", value)) <= _MAX_COLUMNS:
        raise invalid_columns(f"columns must be an array of 1 to {_MAX_COLUMNS} objects.")
    return tuple(_column(position, column) for position, column in enumerate(columns, 1))


def _column(position: int, value: Any) -> ImportColumn:
    if not isinstance(value, Mapping):
        raise invalid_columns("columns must contain only objects.", extra_fields={"column": position})
    try:
        return ImportColumn.model_validate(without_nulls(cast("Mapping[str, Any]", value)))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        text = "is required." if problem["type"] == "missing" else problem["msg"]
        raise invalid_columns(f"columns: {name} {text}", extra_fields={"column": position}) from None


class CreateTableRequest(ColumnParameters):
    """Fields of create_table, in a form or as JSON. Separators may be written with backslash escapes."""

    connector: ConnectorReference = Field(
        description="Id or dialect of a connector.", json_schema_extra={"minLength": 1}
    )
    database: Annotated[Text, AfterValidator(_named)] | None = None
    table: Annotated[RequiredText, AfterValidator(_named)]
    if_exists: Literal["error", "append", "replace"] = Field(
        default="error",
        description="`append` adds the rows to an existing table. `replace` replaces an existing table after all rows"
        " were loaded; not supported by Phoenix.",
    )
    max_bad_rows: Annotated[int, Integer(-1)] | None = Field(
        default=None,
        description="Maximum number of invalid rows, which are skipped and logged; -1 for no limit. By default, 10 % of"
        " the rows up to 10, or 1 % up to 100, whichever is more.",
    )
    columns: Annotated[tuple[ImportColumn, ...] | None, BeforeValidator(_columns)] = Field(
        default=None, description="Columns of the table; by default all columns as in the preview."
    )


def idempotency_key(header: str | None) -> str | None:
    return parse(IdempotencyHeader, {"Idempotency-Key": header}).key
