"""Types of request fields: the same rules for form text and for native JSON values (Contract platform 1.2, editor 1.2).

A value outside its rule raises a PydanticCustomError whose text continues the sentence "<field> must …".
"""

import json
import re
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Self, TypeAlias, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from queryserver.errors.base import InvalidJson, InvalidParameter, MissingParameter
from queryserver.platform.text import MAX_DEPTH, boolean_of, parse_json

INT64_MAX = 2**63 - 1
INVALID_JSON = "invalid_json"
JSON_DEPTH = "max_json_depth"
"""Key of the validation context: how deep JSON text in a field may nest."""
MAX_ENTRIES = 1000

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})")
_EXACT_IN_A_DOUBLE = 2**53


def is_clean(text: str) -> bool:
    """Whether `text` can be stored and sent on: no U+0000, no lone surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise must("be text.")
    if not is_clean(value):
        raise must("be free of U+0000 and of lone surrogates.")
    return value


def _flag(value: Any) -> bool:
    flag = boolean_of(value or "false") if isinstance(value, str) else value
    if isinstance(flag, bool):
        return flag
    raise must("be true or false (also 1 yes on y t yea, 0 no off n f nay).")


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise must("be a JSON object.")
    return without_nulls(value)


def json_of(value: Any, reading: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, max_depth=(reading.context or {}).get(JSON_DEPTH, MAX_DEPTH))
    except InvalidJson as error:
        raise PydanticCustomError(INVALID_JSON, "is not valid: {reason}", {"reason": error.message}) from None


def unquoted(value: Any) -> Any:
    """`"sample"` as a JSON text means `sample`; any other value means itself."""
    if isinstance(value, str) and value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _few(value: Any) -> Any:
    """Before the entries are read: each of them costs some microseconds."""
    if isinstance(value, list | tuple) and len(cast("Sized", value)) > MAX_ENTRIES:
        raise must(f"have at most {MAX_ENTRIES} entries.")
    return value


def without_nulls(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """JSON null equals an absent member (Contract editor 1.2)."""
    for value in values.values():
        if value is None:
            return {name: value for name, value in values.items() if value is not None}
    return values


T = TypeVar("T")

Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
"""Text exactly as decoded; another JSON type is refused."""

TextOrNothing: TypeAlias = Annotated[
    Text | None, AfterValidator(lambda value: None if not value or value.isspace() else value)
]
"""Text that counts as absent when it is empty or blank."""

Name: TypeAlias = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else _text(value))]
"""Text, or an integer that stands for its decimal text: ids of connectors come in both forms."""

NameOrNumber: TypeAlias = Annotated[
    int | str, BeforeValidator(lambda value: value if type(value) is int else _text(value))
]
"""Text, or an integer, which means something else than its decimal text."""

Flag: TypeAlias = Annotated[bool, BeforeValidator(_flag)]
"""A boolean as JSON or as one of the accepted words."""

Json: TypeAlias = Annotated[T, BeforeValidator(lambda value, reading: _object(json_of(value, reading)))]
"""An object that a form holds as JSON text and a JSON body as text or natively."""

Nested: TypeAlias = Annotated[T, BeforeValidator(_object)]
"""An object within another one."""

Few: TypeAlias = Annotated[T, BeforeValidator(_few)]
"""An array of at most 1000 entries."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Annotation of an integer within bounds: decimal text with optional sign, or a JSON number without fraction."""

    minimum: int = -INT64_MAX
    maximum: int = INT64_MAX

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = core_schema.int_schema(
            ge=self.minimum if self.minimum > -INT64_MAX else None,
            le=self.maximum if self.maximum < INT64_MAX else None,
        )
        return core_schema.no_info_before_validator_function(self.read, bounds)

    def read(self, value: Any) -> int:
        """Never a JSON boolean, though Python counts those as integers."""
        is_text = isinstance(value, str) and _WHOLE.fullmatch(value)
        is_float = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_IN_A_DOUBLE
        if type(value) is int or is_text or is_float:
            whole = int(value)
            if self.minimum <= whole <= self.maximum:
                return whole
        raise must(f"be an integer{_range(self.minimum, self.maximum)}.")


@dataclass(frozen=True, slots=True)
class Number:
    """Annotation of a number within bounds: decimal text with optional sign and fraction, or a JSON number."""

    minimum: int
    maximum: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = core_schema.float_schema(ge=self.minimum, le=self.maximum)
        return core_schema.no_info_before_validator_function(self.read, bounds)

    def read(self, value: Any) -> float:
        """Never a JSON boolean; NaN and infinity are outside every range."""
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and self.minimum <= value <= self.maximum:
            return float(value)
        raise must(f"be a number{_range(self.minimum, self.maximum)}.")


def _range(minimum: int, maximum: int) -> str:
    if maximum < INT64_MAX:
        return f" from {minimum} to {maximum}"
    return f" of at least {minimum}" if minimum > -INT64_MAX else ""


def must(rule: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_parameter", "must {rule}", {"rule": rule})


class WireModel(BaseModel):
    """One shape of the wire. A field whose wire name Python forbids ends in `_` and is written under the wire name."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True, defer_build=True)


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


Omittable: TypeAlias = Annotated[
    T | SkipJsonSchema[None], Field(exclude_if=lambda value: value is None, json_schema_extra=_without_default)
]
"""The type of a key that an answer may lack: None keeps the key out of the answer."""

Time: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time as it is written on the wire: RFC 3339, UTC, with `Z`."""


def one_of(*words: str | int) -> WithJsonSchema:
    """The words that a field can hold, for the API description. No answer is checked against them at run time;
    tests compare them with the words of the domain.
    """
    return WithJsonSchema({"type": "integer" if isinstance(words[0], int) else "string", "enum": list(words)})


_MAX_KEPT_VALUES = 10_000
_PASSWORDS = ("password", "passwd", "pwd")
_STEERING = frozenset({"statement_id", "statements_count", "has_more_statements", "previous_statement_hash"})


class Fields(BaseModel):
    """Fields of one call or of one object in it; unknown ones are ignored (Contract editor 1.2)."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class PreviousHandle(Fields):
    """The handle of the statement before, as the client holds it (Contract editor 5.3)."""

    statement_id: Annotated[int, Whole(0)] = 0
    statements_count: Annotated[int, Whole(0)] = 0
    has_more_statements: Flag = False
    previous_statement_hash: Text = ""
    guid: TextOrNothing = None

    @property
    def steers(self) -> bool:
        """Whether any of the four members came that choose the next statement."""
        return not _STEERING.isdisjoint(self.model_fields_set)


class SnippetResult(Fields):
    """The part of a snippet that names an operation."""

    handle: Nested[PreviousHandle] | None = None


class SnippetConnector(Fields):
    """A connector, named by its key or id."""

    type: Name | None = None
    id: Name | None = None


def _setting_value(value: Any) -> str:
    """Engines take settings as text; JSON scalars are written as JSON writes them."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str) or not is_clean(value):
        raise must("be text, a number or a boolean.")
    return value


class Setting(Fields):
    """One engine setting; the connector's allow list decides about it."""

    key: Text
    value: Annotated[str, BeforeValidator(_setting_value)]


class SnippetProperties(Fields):
    """Properties of a snippet that reach the engine."""

    settings: Few[tuple[Nested[Setting], ...]] = ()


class Snippet(Fields):
    """A statement in the full form."""

    type: Text | None = None
    connector: Nested[SnippetConnector] | None = None
    statement: TextOrNothing = None
    database: TextOrNothing = None
    properties: Nested[SnippetProperties] = SnippetProperties()
    result: Nested[SnippetResult] = SnippetResult()

    @property
    def dialect(self) -> str | None:
        """What names the connector: `connector` overrides `type` (Contract editor 1.7)."""
        chosen = self.connector and (self.connector.type or self.connector.id)
        return chosen or self.type or None

    @property
    def guid(self) -> str | None:
        """The token that names an operation in the full form."""
        return self.result.handle.guid if self.result.handle else None


class NotebookSession(Fields):
    """A session that the notebook holds for one dialect."""

    type: Text | None = None
    id: Annotated[int, Whole()] | None = None


class NotebookFields(Fields):
    """The notebook around a snippet."""

    type: Text | None = None
    uuid: TextOrNothing = None
    is_saved: Flag = Field(default=False, alias="isSaved")
    skip_historify: Flag = Field(default=False, alias="skipHistorify")
    parent_saved_query_uuid: TextOrNothing = Field(default=None, alias="parentSavedQueryUuid")
    sessions: Few[tuple[Nested[NotebookSession], ...]] = ()

    @property
    def hides_history(self) -> bool:
        """Whether its operations stay out of get_history (Contract editor 4.1)."""
        return self.skip_historify or self.type == "notebook"

    @property
    def saved_uuid(self) -> str | None:
        """The `history_parent_uuid` of its operations; None unless the notebook is saved."""
        return (self.parent_saved_query_uuid or self.uuid) if self.is_saved else None

    def session_of(self, names: Collection[str]) -> int | None:
        """The session for a connector that goes by one of `names`; names are compared without regard to case."""
        wanted = {name.casefold() for name in names}
        return next(
            (one.id for one in self.sessions if one.id is not None and (one.type or "").casefold() in wanted), None
        )


def _clean_tree(properties: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The properties, if they can be stored as JSON; walks without recursion."""
    left: list[Any] = list(properties)
    seen = 0
    while left:
        seen += 1
        if seen > _MAX_KEPT_VALUES:
            raise must(f"hold at most {_MAX_KEPT_VALUES} values.")
        match left.pop():
            case str(text) if not is_clean(text):
                raise must("be free of U+0000 and of lone surrogates.")
            case float(number) if not isfinite(number):
                raise must("hold finite numbers only.")
            case dict(members):
                left += [*members.keys(), *members.values()]
            case list(elements):
                left += elements
            case _:
                pass
    return properties


def _is_password(one: Mapping[str, Any]) -> bool:
    """Whether a property is a password by its name or key, in any spelling."""
    names = [str(one.get(member, "")).casefold() for member in ("name", "key")]
    return any(word in name for name in names for word in _PASSWORDS)


class SessionSpec(Fields):
    """A session as create_session and close_session take it."""

    type: TextOrNothing = None
    id: Annotated[int, Whole()] | None = None
    properties: Annotated[Few[list[dict[str, Any]]], AfterValidator(_clean_tree)] = []

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User name and password for the data source, when one of them came."""
        user, password = self._credential("user"), self._credential("password")
        return None if user is None and password is None else (user or "", password or "")

    @property
    def settings(self) -> dict[str, str]:
        """Engine settings; the connector's allow list decides about them."""
        given = self._value("key", "settings") or []
        return {setting.key: setting.value for setting in _SETTINGS.validate_python(given)}

    @property
    def shown_properties(self) -> list[dict[str, Any]]:
        return [{**one, "value": ""} if _is_password(one) else one for one in self.properties]

    def _credential(self, name: str) -> str | None:
        value = self._value("name", name)
        if value is not None and not isinstance(value, str):
            raise must("hold user and password as text.")
        return value

    def _value(self, member: str, name: str) -> Any:
        return next((one.get("value") for one in self.properties if one.get(member) == name), None)

    @model_validator(mode="after")
    def _values_have_their_types(self) -> Self:
        """Read once here, so that the properties above cannot fail later."""
        _ = self.credentials, self.settings
        return self


_SETTINGS = TypeAdapter(Few[list[Nested[Setting]]])

Model = TypeVar("Model", bound=Fields)


def parse(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """The fields of one call, from form or query text or from native JSON values.

    JSON text in a field may nest as deep as `max_json_depth`.
    Raises MissingParameter, InvalidParameter or InvalidJson; the message names the field and what it may be.
    """
    try:
        return model.model_validate(without_nulls(values), context={JSON_DEPTH: max_json_depth})
    except ValidationError as error:
        raise as_domain_error(error.errors(include_url=False, include_input=False)) from None


def as_domain_error(problems: list[ErrorDetails]) -> InvalidJson | InvalidParameter | MissingParameter:
    """What does not parse comes first, then the first wrong field (Contract platform 1.1)."""
    problem = next((problem for problem in problems if problem["type"] == INVALID_JSON), problems[0])
    name = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return MissingParameter(f"{name} is required.")
        case "literal_error":
            return InvalidParameter(f"{name} must be {problem.get('ctx', {})['expected']}.")
        case "list_type" | "tuple_type":
            return InvalidParameter(f"{name} must be an array.")
        case "dict_type":
            return InvalidParameter(f"{name} must be a JSON object.")
        case kind:
            failure = InvalidJson if kind == INVALID_JSON else InvalidParameter
            return failure(f"{name} {problem['msg']}")
