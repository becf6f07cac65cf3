"""Types of request fields: the same rules for form text and for native JSON values (Contract platform 1.2, editor 1.2).

A value outside its rule raises a PydanticCustomError whose text continues the sentence "<field> must …".
"""

import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from queryserver.errors.base import InvalidJson
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


def _name(value: Any) -> str:
    """Text, or a whole number as JSON writes it: ids of connectors come in both forms."""
    return str(value) if type(value) is int else _text(value)


def _name_or_number(value: Any) -> str | int:
    """Text, or a whole number that stays one."""
    return value if type(value) is int else _text(value)


def _absent_when_blank(value: str | None) -> str | None:
    return None if not value or value.isspace() else value


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise must("be a JSON object.")
    return without_nulls(value)


def _object_or_json_text(value: Any, reading: ValidationInfo) -> Mapping[str, Any]:
    if not isinstance(value, str):
        return _object(value)
    try:
        return _object(parse_json(value, max_depth=(reading.context or {}).get(JSON_DEPTH, MAX_DEPTH)))
    except InvalidJson as error:
        raise PydanticCustomError(INVALID_JSON, "is not valid: {reason}", {"reason": error.message}) from None


def _few(value: Any) -> Any:
    """Looked at before the entries are: each of them costs some microseconds."""
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

TextOrNothing: TypeAlias = Annotated[Text | None, AfterValidator(_absent_when_blank)]
"""Text that counts as absent when it is empty or blank."""

Name: TypeAlias = Annotated[str, BeforeValidator(_name)]
"""Text, or an integer that stands for its decimal text."""

NameOrNumber: TypeAlias = Annotated[int | str, BeforeValidator(_name_or_number)]
"""Text, or an integer, which means something else than its decimal text."""

Flag: TypeAlias = Annotated[bool, BeforeValidator(_flag)]
"""A boolean as JSON or as one of the accepted words."""

Json: TypeAlias = Annotated[T, BeforeValidator(_object_or_json_text)]
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
        if type(value) is int:
            whole = value
        elif _is_whole_text(value) or _is_whole_float(value):
            whole = int(value)
        else:
            raise self._refusal()
        if self.minimum <= whole <= self.maximum:
            return whole
        raise self._refusal()

    def _refusal(self) -> PydanticCustomError:
        return must(f"be an integer{_range(self.minimum, self.maximum)}.")


def _is_whole_text(value: Any) -> bool:
    return isinstance(value, str) and _WHOLE.fullmatch(value) is not None


def _is_whole_float(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_IN_A_DOUBLE


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
        if isinstance(value, bool) or not (
            isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value))
        ):
            raise self._refusal()
        if isinstance(value, str):
            value = float(value)
        if self.minimum <= value <= self.maximum:
            return float(value)
        raise self._refusal()

    def _refusal(self) -> PydanticCustomError:
        return must(f"be a number{_range(self.minimum, self.maximum)}.")


def _range(minimum: int, maximum: int) -> str:
    if maximum < INT64_MAX:
        return f" from {minimum} to {maximum}"
    return f" of at least {minimum}" if minimum > -INT64_MAX else ""


def must(rule: str) -> PydanticCustomError:
    """The complaint about a field that breaks `rule`."""
    return PydanticCustomError("invalid_parameter", "must {rule}", {"rule": rule})
