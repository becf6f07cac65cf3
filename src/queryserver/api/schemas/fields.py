"""Types of request fields, with the same rules for form text and native JSON (Contract platform 1.2, editor 1.2).

Invalid values raise a PydanticCustomError whose text completes the sentence "<field> must …".
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from queryserver.errors.base import InvalidJson, InvalidParameter, MissingParameter
from queryserver.platform.text import MAX_DEPTH, boolean_of, parse_json

INT64_MAX = 2**63 - 1
INVALID_JSON = "invalid_json"
JSON_DEPTH = "max_json_depth"
"""Key of the validation context: maximum nesting of JSON text in a field."""
MAX_ENTRIES = 1000

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})")
_LARGE = re.compile(r"\+?0*[1-9][0-9]{18,}")
_EXACT_IN_A_DOUBLE = 2**53


def is_clean(text: str) -> bool:
    """Whether `text` can be stored and forwarded: no U+0000, no lone surrogates."""
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
    return without_nulls(object_of(value))


def object_of(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise must("be a JSON object.")
    return cast("Mapping[str, Any]", value)


def json_of(value: Any, reading: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, max_depth=json_depth(reading))
    except InvalidJson as error:
        raise PydanticCustomError(INVALID_JSON, "is not valid: {reason}", {"reason": error.message}) from None


def json_depth(reading: ValidationInfo) -> int:
    """How deep JSON text in a field may be nested."""
    context: Mapping[str, int] = reading.context or {}
    return context.get(JSON_DEPTH, MAX_DEPTH)


def unquoted(value: Any) -> Any:
    """The decoded string if the value is a JSON string such as `"sample"`; any other value unchanged."""
    if isinstance(value, str) and value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _few(value: Any) -> Any:
    """Checked before the entries are validated, which takes some microseconds each."""
    entries: Any = value
    if isinstance(value, list | tuple) and len(entries) > MAX_ENTRIES:
        raise must(f"have at most {MAX_ENTRIES} entries.")
    return entries


def without_nulls(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """JSON null is the same as an absent member (Contract editor 1.2)."""
    for value in values.values():
        if value is None:
            return {name: value for name, value in values.items() if value is not None}
    return values


T = TypeVar("T")

EMPTY_ALLOWED: dict[str, Any] = {"allowEmptyValue": True}
"""Added to the schema of a query parameter: empty text counts as absent although the schema does not allow it."""

Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
"""Text exactly as decoded; other JSON types are refused.

The services limit the length of names and descriptions, because commands and files set these values too.
"""

OptionalText: TypeAlias = Annotated[
    Text | None, AfterValidator(lambda value: None if not value or value.isspace() else value)
]
"""Text that counts as absent if it is blank."""

RequiredText: TypeAlias = Annotated[Text, Field(json_schema_extra={"pattern": r"\S"})]
"""Required text; blank text is refused by the handler."""

ConnectorReference: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else _text(value)),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""The id, key or dialect of a connector. An integer is read as its decimal text: clients send ids in both forms."""

TextOrInteger: TypeAlias = Annotated[
    int | str, BeforeValidator(lambda value: value if type(value) is int else _text(value))
]
"""Text, or an integer with a meaning of its own."""

_FLAG_WORDS = "|".join(
    "".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in word)
    for word in ("true", "yes", "yea", "on", "y", "t", "1", "false", "no", "nay", "off", "n", "f", "0", "")
)

Flag: TypeAlias = Annotated[
    bool, BeforeValidator(_flag), WithJsonSchema({"type": ["boolean", "string"], "pattern": f"^(?:{_FLAG_WORDS})$"})
]
"""A boolean as JSON or as one of the accepted words."""

Json: TypeAlias = Annotated[T, BeforeValidator(lambda value, reading: _object(json_of(value, reading)))]
"""An object: JSON text in a form, JSON text or native in a JSON body."""

Nested: TypeAlias = Annotated[T, BeforeValidator(_object)]
"""An object within another one."""

ShortArray: TypeAlias = Annotated[T, BeforeValidator(_few)]
"""An array of at most 1000 entries."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Annotation of an integer with bounds: decimal text with optional sign, or a JSON number without fraction."""

    minimum: int = -INT64_MAX
    maximum: int = INT64_MAX

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = core_schema.int_schema(ge=self.minimum, le=self.maximum)
        return core_schema.no_info_before_validator_function(self.read, bounds)

    def read(self, value: Any) -> int:
        """JSON booleans are refused, although Python's are integers."""
        is_text = isinstance(value, str) and _WHOLE.fullmatch(value)
        is_float = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_IN_A_DOUBLE
        if type(value) is int or is_text or is_float:
            whole = int(value)
            if self.minimum <= whole <= self.maximum:
                return whole
        raise must(f"be an integer{_range(self.minimum, self.maximum)}.")


@dataclass(frozen=True, slots=True)
class PageSize:
    """Annotation of a page size: an integer of at least `minimum`; values above `most` are reduced to it.

    Clients send a huge number to get as many entries as possible (Contract platform 1.2).
    """

    most: int = INT64_MAX
    minimum: int = 1

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, core_schema.int_schema(ge=self.minimum))

    def read(self, value: Any) -> int:
        """Raises the error of `Whole` if it is not an integer or too small."""
        if isinstance(value, str):
            is_large = _LARGE.fullmatch(value) is not None
        else:
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            is_large = is_whole and value > self.most
        if is_large:
            return self.most
        return min(Whole(self.minimum).read(value), self.most)


@dataclass(frozen=True, slots=True)
class Number:
    """Annotation of a number with bounds: decimal text with optional sign and fraction, or a JSON number."""

    minimum: int
    maximum: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = core_schema.float_schema(ge=self.minimum, le=self.maximum)
        return core_schema.no_info_before_validator_function(self.read, bounds)

    def read(self, value: Any) -> float:
        """JSON booleans are refused; NaN and infinity are outside every range."""
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
    """A wire model. A field whose wire name is reserved in Python ends in `_` and is written under the wire name."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True, defer_build=True)


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


Omittable: TypeAlias = Annotated[
    T | SkipJsonSchema[None], Field(exclude_if=partial(is_, None), json_schema_extra=_without_default)
]
"""Type of a key that a response may lack: None omits the key."""

Time: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time on the wire: RFC 3339, UTC, with `Z`."""


def given(name: str, **schema: Any) -> dict[str, Any]:
    """JSON Schema of an object with the member `name`, matching `schema`; by default not null."""
    return {"required": [name], "properties": {name: schema or {"not": {"type": "null"}}}}


def filled(*names: str) -> dict[str, Any]:
    """JSON Schema of an object with a non-blank text in the last of `names`, nested in objects of the other names."""
    schema: dict[str, Any] = {"type": "string", "pattern": r"\S"}
    for name in reversed(names[1:]):
        schema = {"type": "object", **given(name, **schema)}
    return given(names[0], **schema)


FORM_PATTERN = "x-form-pattern"
"""Schema key of a field: the pattern of its form text, if that may be more than JSON text."""


def list_pattern(*words: str) -> str:
    """The form text of an array of one or more of `words`: a JSON array, or a comma-separated list."""
    word = "(?:" + "|".join(map(re.escape, words)) + ")"
    blank = r"[ \t\r\n]*"
    array = rf'\[{blank}"{word}"{blank}(?:,{blank}"{word}"{blank})*\]'
    commas = r"[, \t\r\n]*"
    listed = rf"{commas}{word}(?:{blank},{commas}{word})*{commas}"
    return rf"^(?:{blank}{array}{blank}|{listed})$"


def any_of(*choices: Mapping[str, Any]) -> ConfigDict:
    """Schema of a model that needs one of several members; the call itself checks it.

    Written as `if` and `then`, which client generators ignore; for `anyOf` they would generate a class per choice.
    """
    *others, last = map(dict, choices)
    extra: dict[str, Any] = {"if": {"not": {"anyOf": others}} if others else {}, "then": last}
    return ConfigDict(json_schema_extra=extra)


def one_of(*words: str | int) -> WithJsonSchema:
    """The words that a field can have, for the API description.

    Responses are not checked against them at run time; tests compare them with the domain.
    """
    # plain values: YAML cannot represent enumeration members
    values = [word if isinstance(word, int) else str(word) for word in words]
    return WithJsonSchema({"type": "integer" if isinstance(words[0], int) else "string", "enum": values})


class Fields(BaseModel):
    """Fields of a call, or of an object in it; unknown fields are ignored (Contract editor 1.2)."""

    model_config = ConfigDict(frozen=True, defer_build=True)


Model = TypeVar("Model", bound=Fields)


def parse(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """The fields of a call, from form or query text or from native JSON.

    JSON text in a field may nest up to `max_json_depth`. Raises MissingParameter, InvalidParameter or InvalidJson; the
    message names the field and its rule.
    """
    try:
        return model.model_validate(without_nulls(values), context={JSON_DEPTH: max_json_depth})
    except ValidationError as error:
        raise as_domain_error(error.errors(include_url=False, include_input=False)) from None


def as_domain_error(problems: list[ErrorDetails]) -> InvalidJson | InvalidParameter | MissingParameter:
    """Malformed JSON takes precedence, then the first invalid field (Contract platform 1.1)."""
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
