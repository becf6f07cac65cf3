"""Fields of the importer's calls (Contract importer 2, 4 to 7).

Models are read with `parse_import` only: values are not trimmed, empty ones count as absent, and what is missing or
wrong is told in the order of the fields.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from queryserver.domain.errors.base import InvalidParameter, InvalidRequest
from queryserver.domain.errors.files import invalid_dialect
from queryserver.domain.importing import FileType, Origin
from queryserver.domain.json_text import MAX_DEPTH
from queryserver.domain.value_formats import UnknownFormat, date_format
from queryserver.schemas.fields import JSON_DEPTH, Flag, Name, Text, must
from queryserver.schemas.requests.statements import as_domain_error
from queryserver.schemas.snippets import Fields

_SHOWN_CHARACTERS = 100
_NO_CHOICE = frozenset({"enum", "literal_error"})
_DIALECT = "sql_dialect"
_CHOICE = re.compile("'[^']+'|\"[^\"]+\"")


def _words(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [str(word) for word in words]})


GivenOrigin: TypeAlias = Annotated[Origin, _words(*Origin)]
GivenFileType: TypeAlias = Annotated[FileType, _words(*FileType)]
PreviewDialect: TypeAlias = Literal[
    "duckdb", "hive", "impala", "mysql", "phoenix", "postgresql", "sparksql", "sqlite", "trino"
]
NumberForm: TypeAlias = Literal["1234.5", "1234,5", "1,234.5", "1.234,5", "1 234.5", "1 234,5", "1'234.5"]


def _date_form(value: str) -> str:
    try:
        date_format(value)
    except UnknownFormat as error:
        raise must(f"be a format of dates such as %d/%m/%Y: {error}.") from None
    return value


class MetadataParameters(Fields):
    """Query of guess_metadata."""

    file_path: Text = Field(description="The reference of an upload, or a path of a store.")
    import_type: GivenOrigin


class HeaderParameters(Fields):
    """Query of guess_header. Separators are raw or with backslash escapes."""

    file_path: Text = Field(description="The reference of an upload, or a path of a store.")
    file_type: GivenFileType
    import_type: GivenOrigin
    sheet_name: Text | None = Field(default=None, description="Only and always with workbooks.")
    field_separator: Text | None = Field(default=None, description="1 to 8 characters, raw or with backslash escapes.")
    quote_char: Text | None = Field(default=None, description='One character, or `\\0` for none; `"` by default.')
    record_separator: Text | None = Field(default=None, description="1 to 8 characters; a line feed by default.")
    encoding: Text | None = Field(default=None, description="Detected by default.")


class ColumnParameters(HeaderParameters):
    """What decides on the columns of a file."""

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


_DIALECT_OR_CONNECTOR = "The dialect of the connector by default; required without one."


class PreviewParameters(ColumnParameters):
    """Query of preview."""

    sql_dialect: PreviewDialect | None = Field(default=None, description=_DIALECT_OR_CONNECTOR)
    connector: Name | None = Field(default=None, description="Id of a connector, or its dialect.")


class SqlTypesParameters(Fields):
    """Query of sql_type_mapping."""

    sql_dialect: PreviewDialect | None = Field(default=None, description=_DIALECT_OR_CONNECTOR)
    connector: Name | None = Field(default=None, description="Id of a connector, or its dialect.")


Model = TypeVar("Model", bound=Fields)


def parse_import(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """The fields of one call of the importer. JSON text in a field may nest as deep as `max_json_depth`.

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
