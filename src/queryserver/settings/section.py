"""What the tables of the settings file are made of, and how to walk them.

A docstring below a key is its line in docs/configuration.md.
"""

import ast
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StrictBool, StrictInt, StrictStr
from pydantic.fields import FieldInfo

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Options of data sources are named by their interface; these are secrets: masked, and may come from a file or a script.
SECRET_OPTIONS = frozenset({"url", "password", "auth_password", "credentials_json", "token"})


class Section(BaseModel):
    """One table of the settings file."""

    # Values of a file keep their types, those of the environment are converted while they are read: strict types
    # report a mistake where a lenient reading would guess.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(name for part in value.replace("\n", ",").split(",") if (name := part.strip()))
    return tuple(value) if isinstance(value, list) else value


def _place(value: Any) -> Any:
    if isinstance(value, str) and value:
        return Path(value).expanduser()
    if isinstance(value, Path):
        return value
    message = "must be a path."
    raise ValueError(message)


def _optional_place(value: Any) -> Any:
    return None if value is None or value == "" else _place(value)


Flag: TypeAlias = StrictBool
Text: TypeAlias = StrictStr
Whole: TypeAlias = StrictInt
Count: TypeAlias = Annotated[StrictInt, Field(ge=0)]
Positive: TypeAlias = Annotated[StrictInt, Field(ge=1)]
Port: TypeAlias = Annotated[StrictInt, Field(ge=1, le=65535)]
Names: TypeAlias = Annotated[tuple[StrictStr, ...], BeforeValidator(_names)]
"""A comma list or an array."""
Place: TypeAlias = Annotated[Path, BeforeValidator(_place)]
"""A path; relative ones count from the working directory."""
OptionalPlace: TypeAlias = Annotated[Path | None, BeforeValidator(_optional_place)]
"""A path; the empty text is none."""
Secret: TypeAlias = SecretStr
"""May be given as `<key>_file` or `<key>_script` instead."""
Secrets: TypeAlias = Annotated[tuple[SecretStr, ...], BeforeValidator(_names)]

NO_SECRET = SecretStr("")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section."""

    name: str
    """As the file has it."""
    attribute: str
    """As Python has it; only where Pydantic has a method of the key's name it is another."""
    field: FieldInfo
    kind: Any
    """The type without "or None"."""
    section: type[Section] | None
    """The section that the key holds."""
    entries: type[Section] | None
    """The section of each entry of a table whose names are free."""

    @property
    def has_free_names(self) -> bool:
        """Whether the key holds a table of plain values under free names."""
        return get_origin(self.kind) is dict and self.entries is None

    @property
    def is_table(self) -> bool:
        """Whether the key is the head of one table or of several."""
        return self.section is not None or get_origin(self.kind) is dict

    @property
    def is_list(self) -> bool:
        """Whether the key holds a list."""
        return get_origin(self.kind) is tuple

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be shown."""
        extra = self.field.json_schema_extra
        return SecretStr in (self.kind, *get_args(self.kind)) or (isinstance(extra, dict) and bool(extra.get("secret")))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed; empty: anything of its kind."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


@cache
def keys(section: type[Section]) -> Mapping[str, Key]:
    """The keys of a section by their name in the file."""
    return {(field.alias or name): _key(name, field) for name, field in section.model_fields.items()}


def _key(attribute: str, field: FieldInfo) -> Key:
    kind: Any = field.annotation
    if get_origin(kind) in {Union, types.UnionType}:
        kinds = [part for part in get_args(kind) if part is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else kind
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    entries = _section(get_args(kind)[-1]) if get_origin(kind) is dict else None
    return Key(field.alias or attribute, attribute, field, kind, _section(kind), entries)


def _section(kind: Any) -> type[Section] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def leaves(section: Section, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key, Any]]:
    """Path, key and value of every setting; in each table the plain values first, as TOML wants them."""
    for key in sorted(keys(type(section)).values(), key=lambda key: key.is_table):
        value, place = getattr(section, key.attribute), (*path, key.name)
        if key.section:
            yield from leaves(value, place)
        elif key.entries:
            for name, entry in value.items():
                yield from leaves(entry, (*place, name))
        elif key.has_free_names:
            yield from (((*place, name), key, option) for name, option in value.items())
        else:
            yield place, key, value


def tables(section: type[Section], entry: str, name: str = "") -> Iterator[tuple[str, type[Section]]]:
    """The dotted name of each table and its section; `entry` stands for names that are free."""
    yield name, section
    for key in keys(section).values():
        if inner := key.section or key.entries:
            below = [*filter(None, [name]), key.name, *([entry] if key.entries else [])]
            yield from tables(inner, entry, ".".join(below))


@cache
def descriptions(section: type[Section]) -> Mapping[str, str]:
    """Name of a key to the text below it, in one line. Read from the source: Python keeps no docstrings of attributes.

    Pydantic's `use_attribute_docstrings` would parse the source of all sections at each start.
    """
    body = next(node for node in ast.parse(inspect.getsource(section)).body if isinstance(node, ast.ClassDef)).body
    texts = {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
    return {name: texts[key.attribute] for name, key in keys(section).items() if key.attribute in texts}
