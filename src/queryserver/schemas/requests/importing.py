"""Fields of the importer's calls (Contract importer 2, 4 to 7).

Models are read with `parse_import` only: values are not trimmed, empty ones count as absent, and what is missing or
wrong is told in the order of the fields.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from queryserver.domain.errors import InvalidDialect, InvalidParameter
from queryserver.domain.importing import FileType, Origin
from queryserver.domain.json_text import MAX_DEPTH
from queryserver.schemas.fields import JSON_DEPTH, Flag, Text
from queryserver.schemas.requests.statements import as_domain_error
from queryserver.schemas.snippets import Fields

_SHOWN_CHARACTERS = 100
_NO_CHOICE = frozenset({"enum", "literal_error"})
_DIALECT = "sql_dialect"


def _words(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [str(word) for word in words]})


GivenOrigin: TypeAlias = Annotated[Origin, _words(*Origin)]
GivenFileType: TypeAlias = Annotated[FileType, _words(*FileType)]
PreviewDialect: TypeAlias = Literal["hive", "impala", "trino", "phoenix", "sparksql"]


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


class PreviewParameters(HeaderParameters):
    """Query of preview."""

    sql_dialect: PreviewDialect
    has_header: Flag


class SqlTypesParameters(Fields):
    """Query of sql_type_mapping."""

    sql_dialect: PreviewDialect


Model = TypeVar("Model", bound=Fields)


def parse_import(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """The fields of one call of the importer. JSON text in a field may nest as deep as `max_json_depth`.

    Raises MissingParameter, InvalidParameter, InvalidDialect or InvalidJson; the message names the field.
    """
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    try:
        return model.model_validate(given, context={JSON_DEPTH: max_json_depth})
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise _no_choice(problems[0]) if problems[0]["type"] in _NO_CHOICE else as_domain_error(problems) from None


def _no_choice(problem: ErrorDetails) -> InvalidParameter | InvalidDialect:
    name = ".".join(str(part) for part in problem["loc"])
    failure = InvalidDialect if name == _DIALECT else InvalidParameter
    return failure(f'"{str(problem["input"])[:_SHOWN_CHARACTERS]}" is not a valid choice for {name}.')
