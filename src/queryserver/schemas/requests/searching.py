"""Fields of the metadata search (Contract platform 8.1)."""

import json
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from queryserver.domain.errors.base import InvalidJson
from queryserver.domain.json_text import MAX_DEPTH, parse_json
from queryserver.schemas.fields import INVALID_JSON, JSON_DEPTH, Few, Text, Whole, must
from queryserver.schemas.snippets import Fields


def _unquoted(value: Any) -> Any:
    """`"sample"` as a JSON text means `sample`; what is no JSON text means itself."""
    if isinstance(value, str) and value.startswith('"'):
        try:
            told = json.loads(value)
        except ValueError:
            return value
        return told if isinstance(told, str) else value
    return value


def _array(value: Any, reading: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return []
    try:
        return parse_json(value, max_depth=(reading.context or {}).get(JSON_DEPTH, MAX_DEPTH))
    except InvalidJson as error:
        raise PydanticCustomError(INVALID_JSON, "is not valid: {reason}", {"reason": error.message}) from None


def _no_blank(values: tuple[str, ...]) -> tuple[str, ...]:
    if any(not value.strip() for value in values):
        raise must("hold names.")
    return values


JsonText: TypeAlias = Annotated[Text, BeforeValidator(_unquoted)]
NamesInJson: TypeAlias = Annotated[Few[tuple[Text, ...]], BeforeValidator(_array), AfterValidator(_no_blank)]


class SearchRequest(Fields):
    """Fields of entities_interactive."""

    query_s: JsonText = Field(default="", description="The query, plain or as a JSON string.")
    sources: NamesInJson = Field(default=(), description="Among documents, sql, hdfs, s3 and dialects; none: all four.")
    field_facets: NamesInJson = Field(default=(), description="Among type, owner, tags, lastModified.")
    interface: JsonText | None = Field(default=None, description="A catalogue, plain or as a JSON string.")
    limit: Annotated[int, Whole(1, 1000)] = 25
    offset: Annotated[int, Whole(0)] = 0
    prefix: Text = Field(default="", description="Only facet values that begin so, without regard to case.")
