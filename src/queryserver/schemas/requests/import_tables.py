"""Fields of create_table (Contract importer 13). Read with `parse_import`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo

from queryserver.domain.errors.base import InvalidJson
from queryserver.domain.errors.files import invalid_columns
from queryserver.domain.json_text import MAX_DEPTH, parse_json
from queryserver.schemas.fields import JSON_DEPTH, Flag, Name, NameOrNumber, Text, Whole, must, without_nulls
from queryserver.schemas.requests.importing import ColumnParameters
from queryserver.schemas.requests.statements import IdempotencyHeader, parse
from queryserver.schemas.snippets import Fields

_MAX_NAME_CHARACTERS = 128
_MAX_COLUMNS = 2_000


def _named(value: str) -> str:
    if len(value) > _MAX_NAME_CHARACTERS:
        raise must(f"have 1 to {_MAX_NAME_CHARACTERS} characters.")
    return value


class ImportColumn(Fields):
    """One column of the table; what is left out is as in the preview."""

    source: NameOrNumber = Field(description="Position in the file from 1, or name in the preview.")
    name: Text | None = None
    type: Text | None = Field(
        default=None,
        description="A type of the dialect, as the preview names it or with its digits or length: `numeric(12,2)`,"
        " `varchar(20)`.",
    )
    precision: Annotated[int, Whole()] | None = Field(default=None, description="Of DECIMAL: 1 to 38.")
    scale: Annotated[int, Whole()] | None = Field(default=None, description="Of DECIMAL: 0 to the precision.")
    nullable: Flag = Field(default=True, description="Whether the column takes NULL.")
    format: Text | None = Field(
        default=None,
        description="How its dates or numbers are written: a value of `date_format` or `number_format`.",
    )


def _columns(value: Any, reading: ValidationInfo) -> tuple[ImportColumn, ...]:
    """A JSON array, in forms as text. Raises invalid_columns."""
    if isinstance(value, str):
        try:
            value = parse_json(value, max_depth=(reading.context or {}).get(JSON_DEPTH, MAX_DEPTH))
        except InvalidJson as error:
            raise InvalidJson(f"columns is not valid: {error.message}") from None
    if not isinstance(value, Sequence) or not 1 <= len(value) <= _MAX_COLUMNS:
        raise invalid_columns(f"columns must be an array of 1 to {_MAX_COLUMNS} objects.")
    return tuple(_column(one) for one in value)


def _column(value: Any) -> ImportColumn:
    if not isinstance(value, Mapping):
        raise invalid_columns("columns: each must be an object.")
    try:
        return ImportColumn.model_validate(without_nulls(value))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        text = "is required." if problem["type"] == "missing" else problem["msg"]
        raise invalid_columns(f"columns: {name} {text}") from None


class CreateTableRequest(ColumnParameters):
    """Fields of create_table, in a form or as JSON. Separators are raw or with backslash escapes."""

    connector: Name = Field(description="Id of a connector, or its dialect.")
    database: Annotated[Text, AfterValidator(_named)] | None = None
    table: Annotated[Text, AfterValidator(_named)]
    if_exists: Literal["error", "append", "replace"] = Field(
        default="error",
        description="`append` adds the rows to a table that is there. `replace` puts the new table in its place once"
        " all rows are loaded; Phoenix cannot.",
    )
    max_bad_rows: Annotated[int, Whole(-1)] = Field(default=0, description="-1: no limit.")
    columns: Annotated[tuple[ImportColumn, ...] | None, BeforeValidator(_columns)] = Field(
        default=None, description="All columns as in the preview by default."
    )


def idempotency_key(header: str | None) -> str | None:
    """The key that the header `Idempotency-Key` gives. Raises InvalidParameter."""
    return parse(IdempotencyHeader, {"Idempotency-Key": header}).key
