"""The tree of keys as the model classes draw it, for those who walk it: loading, the report, the documentation."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from queryserver.settings.section import Section

# Options of data sources are named by their interface; these hold secrets, so they have twins and are masked.
SECRET_OPTIONS = frozenset({"url", "password", "auth_password", "credentials_json", "token"})


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section."""

    name: str
    field: FieldInfo

    @property
    def section(self) -> type[Section] | None:
        """The section that the key holds."""
        kind = self.kind
        return kind if isinstance(kind, type) and issubclass(kind, Section) else None

    @property
    def entries(self) -> type[Section] | None:
        """The section of each entry of a table whose names are free."""
        value = get_args(self.kind)[-1] if get_origin(self.kind) is dict else None
        return value if isinstance(value, type) and issubclass(value, Section) else None

    @property
    def has_free_names(self) -> bool:
        """Whether the key holds a table of plain values under free names."""
        return get_origin(self.kind) is dict and self.entries is None

    @property
    def is_list(self) -> bool:
        """Whether the key holds a list."""
        return get_origin(self.kind) is tuple

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be shown."""
        extra = self.field.json_schema_extra
        return SecretStr in _parts(self.field.annotation) or (isinstance(extra, dict) and bool(extra.get("secret")))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed; empty: anything of its kind."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def kind(self) -> Any:
        """The type without "or nothing"."""
        annotation = self.field.annotation
        if get_origin(annotation) in {Union, types.UnionType}:
            kinds = [part for part in get_args(annotation) if part is not type(None)]
            annotation = kinds[0] if len(kinds) == 1 else annotation
        return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


@cache
def keys(section: type[Section]) -> Mapping[str, Key]:
    """The keys of a section by their name in the file."""
    return {
        name: Key(name, field)
        for field_name, field in section.model_fields.items()
        for name in [field.alias or field_name]
    }


def value_of(section: Section, key: Key) -> Any:
    """The value that a section has under a key."""
    return getattr(section, field_name(type(section), key))


def field_name(section: type[Section], key: Key) -> str:
    """The name in Python of a key; only where Pydantic has a method of the key's name it is another."""
    return next(name for name, field in section.model_fields.items() if (field.alias or name) == key.name)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
