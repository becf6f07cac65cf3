"""Fields of storage calls, which go by several names and come from two places (Contract storage 2.1)."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, cast

from pydantic import BeforeValidator, Field

from queryserver.domain.errors.base import conflicting_parameters
from queryserver.domain.errors.files import too_many_entries
from queryserver.schemas.fields import MAX_ENTRIES, Text
from queryserver.schemas.requests.statements import parse
from queryserver.schemas.snippets import Fields

QUERY_TOO = frozenset({"dest", "destination_path", "overwrite", "skip_trash", "wait"})
"""What POST calls read from the query string as well."""

PATH_FIELDS = frozenset({"path", "src_path", "source_path", "dest_path", "destination_path", "dest"})
"""What holds a path."""

NAME_FIELDS = frozenset({"name", "qqfilename"})
"""What holds the name of a new entry."""


def _few_items(value: Any) -> Any:
    """Looked at before the paths are: each of them costs some microseconds."""
    if isinstance(value, list | tuple) and len(cast("Sized", value)) > MAX_ENTRIES:
        raise too_many_entries(f"At most {MAX_ENTRIES} items at once.")
    return value


Items: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(_few_items), Field(min_length=1)]
"""Paths of the items of a call, at most 1000; more raise too_many_entries (Contract storage 7.8)."""


class StorageFields(Fields):
    """Fields of a storage call. Each field is read from its own name and from its `SYNONYMS`."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {}
    REPEATABLE: ClassVar[frozenset[str]] = frozenset()
    """Fields of which every value counts; their type is a tuple."""


@dataclass(frozen=True, slots=True)
class Given:
    """Every value that came, by name, in its order: JSON values natively, form and query values as text."""

    query: Mapping[str, Sequence[Any]]
    body: Mapping[str, Sequence[Any]]


Model = TypeVar("Model", bound=StorageFields)


def parse_given(model: type[Model], given: Given, *, max_json_depth: int) -> Model:
    """The fields of one call.

    Raises conflicting_parameters when a field is given twice, under two names or in query and body, with different
    content; else as `parse`. Of a name that is repeated the last value counts.
    """
    values = {name: value for name in model.model_fields if (value := _value(model, name, given)) is not None}
    return parse(model, values, max_json_depth=max_json_depth)


@cache
def wire_names(model: type[Fields]) -> frozenset[str]:
    """The names by which clients may give the fields of a model."""
    synonyms: Mapping[str, Sequence[str]] = model.SYNONYMS if issubclass(model, StorageFields) else {}
    own = {field.alias or name for name, field in model.model_fields.items()}
    return frozenset(own.union(*synonyms.values()))


def _value(model: type[StorageFields], name: str, given: Given) -> Any:
    spellings = model.SYNONYMS.get(name, (name,))
    found = [
        values if name in model.REPEATABLE else values[-1]
        for place in (given.query, given.body)
        for spelling in spellings
        if (values := [value for value in place.get(spelling, ()) if value is not None])
    ]
    if not found:
        return None
    if len(set(map(_content, found))) > 1:
        raise conflicting_parameters(f"Different values are given for {' and '.join(spellings)}.")
    return found[-1]


def _content(value: Any) -> str:
    """What a value says, whether it came as JSON or as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
