"""What all generated models have in common."""

from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

T = TypeVar("T")


class WireModel(BaseModel):
    """One shape of the wire. A field whose wire name Python forbids ends in `_` and is written under the wire name."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


def _is_none(value: object) -> bool:
    return value is None


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


Omittable: TypeAlias = Annotated[
    T | SkipJsonSchema[None], Field(exclude_if=_is_none, json_schema_extra=_without_default)
]
"""The type of a key that an answer may lack: None keeps the key out of the answer."""

Time: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time as it is written on the wire: RFC 3339, UTC, with `Z`."""


def one_of(*words: str | int) -> WithJsonSchema:
    """The words that a field can hold, for the API description. No answer is checked against them at run time;
    tests compare them with the words of the domain.
    """
    return WithJsonSchema({"type": "integer" if isinstance(words[0], int) else "string", "enum": list(words)})
