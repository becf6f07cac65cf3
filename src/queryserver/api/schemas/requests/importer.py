"""Fields of the importer's calls (Contract importer 2, 4 to 7).

Create models only with `parse_import`: values are not trimmed, empty ones count as absent, and problems are reported in
the order of the fields.
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
"""Name of an encoding; case does not matter."""
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
        raise must(f"be a format of dates such as %d/%m/%Y: {error}.") from None
    return value


def _null_words(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """A JSON array of texts; JSON text in forms and queries."""
    value = parse_json_text(value, info)
    words = cast("Sequence[Any]", value)
    if not isinstance(value, Sequence) or isinstance(value, str) or len(words) > _MAX_NULL_WORDS:
        raise must(f"be a JSON array of at most {_MAX_NULL_WORDS} texts.")
    if not all(isinstance(one, str) and is_storable_text(one) and len(one) <= _MAX_NULL_WORD for one in words):
        raise must(f"hold texts of at most {_MAX_NULL_WORD} characters.")
    return tuple(words)


class ImportFields(Fields):
    """Fields of a call of the importer. Empty text counts as absent in all of them (Contract importer 2.3)."""


class MetadataParameters(ImportFields):
    file_path: RequiredText = Field(description="The reference of an upload, or a path of a store.")
    import_type: OriginField
    encoding: FileEncoding | None = Field(default=None, description="Of a text. Detected by default.")


class HeaderParameters(ImportFields):
    """Query of guess_header. Separators may be written with backslash escapes."""

    file_path: RequiredText = Field(description="The reference of an upload, or a path of a store.")
    file_type: FileTypeField
    import_type: OriginField
    sheet_name: Text | None = Field(default=None, description="Only and always with workbooks.")
    field_separator: Text | None = Field(default=None, description="1 to 8 characters, raw or with backslash escapes.")
    quote_char: Text | None = Field(default=None, description='One character, or `\\0` for none; `"` by default.')
    record_separator: Text | None = Field(default=None, description="1 to 8 characters; a line feed by default.")
    encoding: FileEncoding | None = Field(default=None, description="Detected by default.")
    skip_rows: Annotated[int, Integer(0, MAX_SKIPPED_LINES)] | None = Field(
        default=None,
        description="How many lines of a text, or rows of a worksheet, stand above the table. Detected by default.",
    )
    comment: Text | None = Field(
        default=None,
        description="What the lines begin with that are comments: 1 to 8 characters, raw or with backslash escapes, or"
        " `\\0` for none. Detected by default.",
    )
    escape: Text | None = Field(
        default=None,
        description="The character that takes away the meaning of a separator or quote behind it, mostly a backslash;"
        " `\\0` for none. Detected by default.",
    )


class ColumnParameters(HeaderParameters):
    has_header: Flag | None = Field(
        default=None,
        description="Whether the first row names the columns. Required, but for files of records, which name them.",
    )
    date_format: Annotated[Text, AfterValidator(_date_form)] | None = Field(
        default=None,
        description="How dates or timestamps of a text are written, as in strftime: `%d/%m/%Y`, `%b %d %Y %H:%M`."
        " Detected by default, where the first rows leave no doubt.",
    )
    number_format: NumberForm | None = Field(
        default=None,
        description="The number 1234.5 as the text writes it. Detected by default, where the first rows leave no"
        " doubt.",
    )
    null_words: Annotated[tuple[str, ...] | None, BeforeValidator(_null_words)] = Field(
        default=None,
        description='Cells that mean NULL in every column, as a JSON array: `["NA", "--"]`; `[]` for none. By default'
        " those that alone keep a column from being one of numbers, dates, times or booleans, in that column only.",
    )


_DIALECT_OR_CONNECTOR = "The dialect of the connector by default; required without one."


class PreviewParameters(ColumnParameters):
    sql_dialect: PreviewDialect | None = Field(default=None, description=_DIALECT_OR_CONNECTOR)
    connector: ConnectorReference | None = Field(default=None, description="Id of a connector, or its dialect.")


class SqlTypesParameters(ImportFields):
    sql_dialect: PreviewDialect | None = Field(default=None, description=_DIALECT_OR_CONNECTOR)
    connector: ConnectorReference | None = Field(default=None, description="Id of a connector, or its dialect.")


Model = TypeVar("Model", bound=Fields)


def parse_import(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """The fields of a call of the importer. JSON text in a field may nest up to `max_json_depth`.

    Raises MissingParameter, InvalidParameter, invalid_dialect or InvalidJson; the message names the field.
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
    """One column of the table; omitted members are as in the preview."""

    source: TextOrInteger = Field(description="Position in the file from 1, or name in the preview.")
    name: Text | None = None
    type: Text | None = Field(
        default=None,
        description="A type of the dialect, as the preview names it or with its digits or length: `numeric(12,2)`,"
        " `varchar(20)`.",
    )
    precision: Annotated[int, Integer()] | None = Field(default=None, description="Of DECIMAL: 1 to 38.")
    scale: Annotated[int, Integer()] | None = Field(default=None, description="Of DECIMAL: 0 to the precision.")
    nullable: Flag = Field(default=True, description="Whether the column takes NULL.")
    format: Text | None = Field(
        default=None, description="How its dates or numbers are written: a value of `date_format` or `number_format`."
    )
    null_words: Annotated[tuple[str, ...] | None, BeforeValidator(_null_words)] = Field(
        default=None, description="Cells that mean NULL in it; `[]` for none."
    )


def _columns(value: Any, info: ValidationInfo) -> tuple[ImportColumn, ...]:
    """A JSON array; JSON text in forms. Raises invalid_columns."""
    if isinstance(value, str):
        try:
            value = parse_json(value, max_depth=max_json_depth_of(info))
        except InvalidJson as error:
            raise InvalidJson(f"columns is not valid: {error.message}") from None
    if not isinstance(value, Sequence) or not 1 <= len(columns := cast("Sequence[Any]", value)) <= _MAX_COLUMNS:
        raise invalid_columns(f"columns must be an array of 1 to {_MAX_COLUMNS} objects.")
    return tuple(map(_column, columns))


def _column(value: Any) -> ImportColumn:
    if not isinstance(value, Mapping):
        raise invalid_columns("columns: each must be an object.")
    try:
        return ImportColumn.model_validate(without_nulls(cast("Mapping[str, Any]", value)))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        text = "is required." if problem["type"] == "missing" else problem["msg"]
        raise invalid_columns(f"columns: {name} {text}") from None


class CreateTableRequest(ColumnParameters):
    """Fields of create_table, in a form or as JSON. Separators may be written with backslash escapes."""

    connector: ConnectorReference = Field(
        description="Id of a connector, or its dialect.", json_schema_extra={"minLength": 1}
    )
    database: Annotated[Text, AfterValidator(_named)] | None = None
    table: Annotated[RequiredText, AfterValidator(_named)]
    if_exists: Literal["error", "append", "replace"] = Field(
        default="error",
        description="`append` adds the rows to a table that is there. `replace` puts the new table in its place once"
        " all rows are loaded; Phoenix cannot.",
    )
    max_bad_rows: Annotated[int, Integer(-1)] | None = Field(
        default=None,
        description="How many rows may be bad; they are left out and listed in the log. -1: no limit. By default a"
        " tenth of the rows up to 10, or one of a hundred up to 100, whichever is more.",
    )
    columns: Annotated[tuple[ImportColumn, ...] | None, BeforeValidator(_columns)] = Field(
        default=None, description="All columns as in the preview by default."
    )


def idempotency_key(header: str | None) -> str | None:
    return parse(IdempotencyHeader, {"Idempotency-Key": header}).key
