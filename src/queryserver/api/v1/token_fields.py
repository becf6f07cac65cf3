"""Fields of the token calls: their failures are a map of field to texts (Contract platform 3.2)."""

from collections.abc import Mapping
from typing import Any

from queryserver.domain.errors.base import InvalidFields
from queryserver.domain.json_text import boolean_of
from queryserver.schemas.fields import is_clean


class TokenFields:
    """Reads one field after the other and gathers what is wrong."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._problems: dict[str, list[str]] = {}

    def text(
        self, name: str, *, trimmed: bool = False, most_characters: int | None = None, most_bytes: int | None = None
    ) -> str:
        """A required text; a JSON number counts as its text. Empty when it is no good, which is noted."""
        value = self._fields.get(name)
        if name not in self._fields:
            return self._problem(name, "This field is required.")
        if value is None:
            return self._problem(name, "This field may not be null.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not is_clean(value):
            return self._problem(name, "Not a valid string.")
        text = value.strip() if trimmed else value
        if not text:
            return self._problem(name, "This field may not be blank.")
        most = _exceeded(text, most_characters, most_bytes)
        return self._problem(name, f"Ensure this field has no more than {most} characters.") if most else text

    def flag(self, name: str) -> bool:
        """An optional boolean, false when absent."""
        value = self._fields.get(name)
        if isinstance(value, bool) or value is None:
            return bool(value)
        flag = boolean_of(str(value) or "false") if isinstance(value, str | int) else None
        if flag is None:
            self._problem(name, "Must be a valid boolean.")
        return bool(flag)

    def require_good(self) -> None:
        """Raises InvalidFields when anything was wrong."""
        if self._problems:
            raise InvalidFields(self._problems)

    def _problem(self, name: str, text: str) -> str:
        self._problems[name] = [text]
        return ""


def _exceeded(text: str, characters: int | None, octets: int | None) -> int | None:
    """The limit that the text breaks."""
    if characters is not None and len(text) > characters:
        return characters
    return octets if octets is not None and len(text.encode()) > octets else None
