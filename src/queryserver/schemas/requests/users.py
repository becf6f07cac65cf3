"""Query parameters of the calls that look users up (Contract platform 6)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from queryserver.domain.errors.base import InvalidJson, too_many_ids
from queryserver.domain.json_text import MAX_DEPTH, parse_json
from queryserver.schemas.fields import INT64_MAX, INVALID_JSON, JSON_DEPTH, MAX_ENTRIES, Flag, Text, Whole, must
from queryserver.schemas.requests.statements import BigNumbersField
from queryserver.schemas.snippets import Fields


def _names(value: Any) -> Sequence[str] | None:
    """Every value that came, each a comma list; None when no name is in them."""
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in values):
        raise must("be text.")
    return tuple(name for one in values for part in cast("str", one).split(",") if (name := part.strip())) or None


def _ids(value: Any, reading: ValidationInfo) -> Sequence[int]:
    """A JSON array of integers, as text or natively."""
    if isinstance(value, str):
        try:
            value = parse_json(value, max_depth=(reading.context or {}).get(JSON_DEPTH, MAX_DEPTH))
        except InvalidJson as error:
            raise PydanticCustomError(INVALID_JSON, "is not valid: {reason}", {"reason": error.message}) from None
    if not isinstance(value, list | tuple):
        raise must("be a JSON array of integers.")
    entries = cast("Sequence[Any]", value)
    if len(entries) > MAX_ENTRIES:
        raise too_many_ids(f"userids must have at most {MAX_ENTRIES} entries.")
    if not all(type(entry) is int and abs(entry) <= INT64_MAX for entry in entries):
        raise must("be a JSON array of integers.")
    return entries


GroupNames: TypeAlias = Annotated[
    tuple[Text, ...] | None,
    BeforeValidator(_names),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
UserIds: TypeAlias = Annotated[
    tuple[int, ...],
    BeforeValidator(_ids),
    WithJsonSchema({"type": "string", "contentMediaType": "application/json", "default": "[]"}),
]


class UserListParameters(Fields):
    """Which users are listed."""

    username: Text = ""
    groups: GroupNames = None
    is_active: Flag | None = None
    page: Annotated[int, Whole(1)] | None = None
    limit: Annotated[int, Whole(1, MAX_ENTRIES)] | None = None


class UsersParameters(Fields):
    """Which users are shown."""

    userids: UserIds = ()


class UserAutocompleteParameters(Fields):
    """What is typed, and what to complete it with."""

    filter: Text = ""
    count: Annotated[int, Whole(1, MAX_ENTRIES)] = 100
    extend_user: Flag = False
    include_myself: Flag = False
    only_mygroups: Flag = False


class PreferencesRequest(Fields):
    """Preferences of the caller that are to be changed; others stay as they are."""

    big_numbers: BigNumbersField = None

    @property
    def changes(self) -> Mapping[str, str]:
        """Those that came."""
        return self.model_dump(exclude_none=True)
