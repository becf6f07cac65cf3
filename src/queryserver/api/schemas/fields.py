"""Types of request fields, which follow the same rules in forms and in JSON (Contract platform 1.2, editor 1.2).

Invalid values raise a PydanticCustomError whose message completes the sentence "<field> must …".
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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
from queryserver.platform.text import MAX_DEPTH, is_array, parse_boolean, parse_json
from queryserver.sql.parameters import MAX_ROWS

INT64_MAX = 2**63 - 1
INVALID_JSON = "invalid_json"
JSON_DEPTH = "max_json_depth"
"""Key in the validation context for the maximum nesting depth of JSON text in a field."""
MAX_ENTRIES = 1000
MAX_PAGE_ENTRIES = 100
_MAX_PAGE = 10**9

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,19}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
_LARGE = re.compile(r"\+?0*[1-9][0-9]{18,}")
_LONG_NUMBER = re.compile(r"[+-]?0*[1-9][0-9]{18,}")
_EXACT_IN_A_DOUBLE = 2**53


def is_storable_text(text: str) -> bool:
    """Return whether `text` can be stored and forwarded, i.e. contains no U+0000 and no lone surrogates."""
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
        raise must("be a string.")
    if not is_storable_text(value):
        raise must("not contain U+0000 or lone surrogates.")
    return value


def _flag(value: Any) -> bool:
    flag = parse_boolean(value or "false") if isinstance(value, str) else value
    if isinstance(flag, bool):
        return flag
    raise must("be true or false (or 1 yes on y t yea, 0 no off n f nay).")


def _object(value: Any) -> Mapping[str, Any]:
    return without_nulls(require_object(value))


def require_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise must("be a JSON object.")
    return cast("Mapping[str, Any]", value)


def parse_json_text(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, max_depth=max_json_depth_of(info))
    except InvalidJson as error:
        raise PydanticCustomError(INVALID_JSON, "is not valid: {reason}", {"reason": error.message}) from None


def max_json_depth_of(info: ValidationInfo) -> int:
    """Return the maximum nesting depth of JSON text in a field."""
    context: Mapping[str, int] = info.context or {}
    return context.get(JSON_DEPTH, MAX_DEPTH)


def decode_json_string(value: Any) -> Any:
    """Decode a JSON string such as `"sample"`. Other values are returned unchanged."""
    if isinstance(value, str) and value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _require_few_entries(value: Any) -> Any:
    """Check the number of entries before validating them, because validation takes some microseconds per entry."""
    entries: Any = value
    if isinstance(value, list | tuple) and len(entries) > MAX_ENTRIES:
        raise must(f"have at most {MAX_ENTRIES} entries.")
    return entries


def without_nulls(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `values` without members that are null, because null means absent (Contract editor 1.2)."""
    for value in values.values():
        if value is None:
            return {name: value for name, value in values.items() if value is not None}
    return values


T = TypeVar("T")

EMPTY_ALLOWED: dict[str, Any] = {"allowEmptyValue": True}
"""Schema of a query parameter that may be empty although its type excludes this. An empty value means absent."""

Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
"""A string exactly as decoded. Other JSON types are rejected.

The services limit the length of names and descriptions, because these values can also be set by commands and files.
"""

TicketField: TypeAlias = Annotated[
    Text | SkipJsonSchema[None],
    Field(description="A download ticket for this address, in place of a token. It must be the last parameter."),
]
OptionalText: TypeAlias = Annotated[
    Text | None, AfterValidator(lambda value: None if not value or value.isspace() else value)
]
"""A string, or None if it is blank."""

RequiredText: TypeAlias = Annotated[Text, Field(json_schema_extra={"pattern": r"\S"})]
"""A required string. The handler rejects blank strings."""

ConnectorReference: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else _text(value)),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""The id, key or dialect of a connector. Integers are converted to strings, because clients send ids in both forms."""

TextOrInteger: TypeAlias = Annotated[
    int | str, BeforeValidator(lambda value: value if type(value) is int else _text(value))
]
"""A string or an integer, which have different meanings."""

_FLAG_WORDS = "|".join(
    "".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in word)
    for word in ("true", "yes", "yea", "on", "y", "t", "1", "false", "no", "nay", "off", "n", "f", "0", "")
)

Flag: TypeAlias = Annotated[
    bool, BeforeValidator(_flag), WithJsonSchema({"type": ["boolean", "string"], "pattern": f"^(?:{_FLAG_WORDS})$"})
]
"""A JSON boolean, or one of the accepted words."""

Json: TypeAlias = Annotated[T, BeforeValidator(lambda value, info: _object(parse_json_text(value, info)))]
"""An object, sent as JSON text or, in a JSON body, as a native JSON object."""

Nested: TypeAlias = Annotated[T, BeforeValidator(_object)]
"""An object inside another object."""

ShortArray: TypeAlias = Annotated[T, BeforeValidator(_require_few_entries)]
"""An array with at most 1000 entries."""


@dataclass(frozen=True, slots=True)
class Integer:
    """Annotation for a bounded integer: a decimal string with an optional sign, or a whole JSON number."""

    minimum: int = -INT64_MAX
    maximum: int = INT64_MAX

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = core_schema.int_schema(ge=self.minimum, le=self.maximum)
        return core_schema.no_info_before_validator_function(self.read, bounds)

    def read(self, value: Any) -> int:
        """Convert the value. Booleans are rejected, although they are integers in Python."""
        is_text = isinstance(value, str) and _INTEGER.fullmatch(value)
        is_float = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_IN_A_DOUBLE
        if type(value) is int or is_text or is_float:
            whole = int(value)
            if self.minimum <= whole <= self.maximum:
                return whole
        raise must(f"be an integer{_range(self.minimum, self.maximum)}.")


@dataclass(frozen=True, slots=True)
class PageSize:
    """Annotation for a page size: an integer of at least `minimum`. Values above `maximum` are reduced to `maximum`.

    Clients send huge numbers to request as many entries as possible (Contract platform 1.2).
    """

    maximum: int = INT64_MAX
    minimum: int = 1

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, core_schema.int_schema(ge=self.minimum))

    def read(self, value: Any) -> int:
        """Convert the value. Raises the error of `Integer` if the value is not an integer or is too small."""
        if isinstance(value, str):
            is_large = _LARGE.fullmatch(value) is not None
        else:
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            is_large = is_whole and value > self.maximum
        if is_large:
            return self.maximum
        return min(Integer(self.minimum).read(value), self.maximum)


def _as_int64(value: Any) -> Any:
    """Replace a decimal string outside int64 with the nearest int64, so that it counts as a number out of range."""
    if not isinstance(value, str) or not _LONG_NUMBER.fullmatch(value):
        return value
    return -INT64_MAX if value.startswith("-") else INT64_MAX


# Pages beyond the end are empty. The row offset of page _MAX_PAGE still fits PostgreSQL's bigint.
PageNumber: TypeAlias = Annotated[
    int,
    Integer(1),
    BeforeValidator(_as_int64),
    AfterValidator(lambda page: min(page, _MAX_PAGE)),
    WithJsonSchema({"type": "integer", "minimum": 1}),
]
EntriesPerPage: TypeAlias = Annotated[
    int,
    Integer(),
    BeforeValidator(_as_int64),
    AfterValidator(lambda limit: limit if 1 <= limit <= MAX_PAGE_ENTRIES else MAX_PAGE_ENTRIES),
    WithJsonSchema({"type": "integer"}),
]


@dataclass(frozen=True, slots=True)
class Number:
    """Annotation for a bounded number: a JSON number, or a string with an optional sign, fraction and exponent."""

    minimum: int
    maximum: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = core_schema.float_schema(ge=self.minimum, le=self.maximum)
        return core_schema.no_info_before_validator_function(self.read, bounds)

    def read(self, value: Any) -> float:
        """Convert the value. Booleans are rejected, as are NaN and infinity, which are outside every range."""
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
    """A response model. A field has the suffix `_` if its key is a reserved name in Python or pydantic."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True, defer_build=True)


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


Omittable: TypeAlias = Annotated[
    T | SkipJsonSchema[None], Field(exclude_if=partial(is_, None), json_schema_extra=_without_default)
]
"""Type of an optional key in a response. If the value is None, the key is omitted."""

Time: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in a response: RFC 3339, UTC, with `Z`."""


def requires(name: str, **schema: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object whose member `name` must match `schema`. By default, null does not match."""
    return {"required": [name], "properties": {name: schema or {"not": {"type": "null"}}}}


def requires_text(*names: str) -> dict[str, Any]:
    """Return the JSON Schema of an object with a non-blank string at the path `names`."""
    schema: dict[str, Any] = {"type": "string", "pattern": r"\S"}
    for name in reversed(names[1:]):
        schema = {"type": "object", **requires(name, **schema)}
    return requires(names[0], **schema)


FORM_PATTERN = "x-form-pattern"
"""Schema key for the pattern of a field's form value. Used for fields that accept other formats besides JSON."""


_WHITE_SPACE = " \t\r\n"


def listed(value: Any, info: ValidationInfo) -> Any:
    """Parse a list, sent as a JSON array, as JSON text or comma-separated. Only JSON white space is stripped."""
    if isinstance(value, str) and not value.lstrip(_WHITE_SPACE).startswith("["):
        return [name for part in value.split(",") if (name := part.strip(_WHITE_SPACE))]
    return parse_json_text(value, info)


def moment(value: Any) -> Any:
    """Parse a time as sent in a request; without a time zone, it is UTC."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
        if time is not None:
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # out of range: outside the years 1 to 9999 in UTC
        pass
    raise must("be a time such as 2026-01-05T09:10:11Z.")


def word_list_pattern(*words: str) -> str:
    """Return a pattern that matches one or more of `words`, as a JSON array or a comma-separated list."""
    word = "(?:" + "|".join(map(re.escape, words)) + ")"
    blank = r"[ \t\r\n]*"
    array = rf'\[{blank}"{word}"{blank}(?:,{blank}"{word}"{blank})*\]'
    commas = r"[, \t\r\n]*"
    listed = rf"{commas}{word}(?:{blank},{commas}{word})*{commas}"
    return rf"^(?:{blank}{array}{blank}|{listed})$"


def any_of(*choices: Mapping[str, Any]) -> ConfigDict:
    """Return a model configuration whose JSON Schema requires one of several members.

    Pydantic does not check this rule, but each call does. It is expressed with `if` and `then`, which client generators
    ignore. From `anyOf`, they would generate a class for each alternative.
    """
    *others, last = map(dict, choices)
    extra: dict[str, Any] = {"if": {"not": {"anyOf": others}} if others else {}, "then": last}
    return ConfigDict(json_schema_extra=extra)


def one_of(*words: str | int) -> WithJsonSchema:
    """Return the JSON Schema of a field whose value is one of `words`.

    Responses are not checked at run time. Tests compare the words with the domain's enumerations.
    """
    # Plain values, because YAML cannot represent enumeration members.
    values = [word if isinstance(word, int) else str(word) for word in words]
    return WithJsonSchema({"type": "integer" if isinstance(words[0], int) else "string", "enum": values})


class Fields(BaseModel):
    """Fields of a call, or of an object in a call. Unknown fields are ignored (Contract editor 1.2)."""

    model_config = ConfigDict(frozen=True, defer_build=True)


Model = TypeVar("Model", bound=Fields)


def parse(model: type[Model], values: Mapping[str, Any], *, max_json_depth: int = MAX_DEPTH) -> Model:
    """Parse the fields of a call from a form, a query string or JSON.

    `max_json_depth` limits the nesting of JSON text in a field. Raises MissingParameter, InvalidParameter or
    InvalidJson with a message that names the field and the violated rule.
    """
    try:
        return model.model_validate(without_nulls(values), context={JSON_DEPTH: max_json_depth})
    except ValidationError as error:
        raise as_domain_error(error.errors(include_url=False, include_input=False)) from None


def as_domain_error(problems: list[ErrorDetails]) -> InvalidJson | InvalidParameter | MissingParameter:
    """Return the domain error for malformed JSON if there is any, otherwise for the first invalid field.

    Contract platform 1.1.
    """
    problem = next((problem for problem in problems if problem["type"] == INVALID_JSON), problems[0])
    name = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return MissingParameter(f"{name} is required.")
        case "literal_error" | "enum":
            return InvalidParameter(f"{name} must be {problem.get('ctx', {})['expected']}.")
        case "list_type" | "tuple_type":
            return InvalidParameter(f"{name} must be an array.")
        case "dict_type":
            return InvalidParameter(f"{name} must be a JSON object.")
        case kind:
            failure = InvalidJson if kind == INVALID_JSON else InvalidParameter
            return failure(f"{name} {problem['msg']}")


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
