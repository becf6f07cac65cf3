"""Fields with the parameter values of a statement (docs/clients.md)."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from queryserver.api.schemas.fields import must, parse_json_text
from queryserver.platform.text import is_array
from queryserver.sql.parameters import MAX_ROWS


def _parameters(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and not value.strip():
        return None
    values = parse_json_text(value, info)
    if isinstance(values, list | Mapping | None):
        return cast("object", values)
    raise must("be a JSON list or a JSON object.")


ParametersField: TypeAlias = Annotated[
    Any,
    BeforeValidator(_parameters),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {}}, {"type": "object", "additionalProperties": True}, {"type": "null"}]}
    ),
    Field(
        description="Values of the statement's parameter markers: a list for `?` (`??` is a literal `?`), an object for"
        ' `:name`. A value is plain JSON, a list for an array, or `{"type": …, "value": …}` with one of the types'
        " boolean, bigint, double, decimal, varchar, date, time, timestamp, timestamp_tz, binary (base64) and array."
        " Without this field, the statement is not searched for markers."
    ),
]


def _parameter_rows(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and not value.strip():
        return None
    rows = parse_json_text(value, info)
    if rows is not None and not is_array(rows):
        raise must("be a JSON list of rows.")
    return rows


ParameterRowsField: TypeAlias = Annotated[
    Any,
    BeforeValidator(_parameter_rows),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {
                        "anyOf": [{"type": "array", "items": {}}, {"type": "object", "additionalProperties": True}]
                    },
                    "minItems": 1,
                    "maxItems": MAX_ROWS,
                },
                {"type": "null"},
            ]
        }
    ),
    Field(
        description="Rows of parameter values, each in the form of `parameters`. The statement, which must change data,"
        " runs once for each row, in order. If the engine has transactions, all rows are in one: if a row fails, none"
        f" is kept. At most {MAX_ROWS:,} rows."
    ),
]
