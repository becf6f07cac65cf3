"""The type texts of Hive's family taken apart: `array<struct<k:string>>`, `map<string,int>`, `decimal(10,2)`."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_COMPLEX = frozenset({"array", "map", "struct"})
_LINE_BREAKS = re.compile(r"\s*\n\s*")
_WORD = re.compile(r"\w+")
_OPENING = frozenset("<(")
_CLOSING = frozenset(">)")


@dataclass(frozen=True, slots=True)
class NestedType:
    """`base` is the lower-case first word; `parts` are the type texts below: `item`, `key` and `value`, or fields."""

    base: str
    parts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_complex(self) -> bool:
        """Whether it has parts."""
        return self.base in _COMPLEX

    def part(self, name: str) -> tuple[str, str] | None:
        """The part of exactly that name, else of that name in any case: its name and type text."""
        if name in self.parts:
            return name, self.parts[name]
        folded = [one for one in self.parts.items() if one[0].lower() == name.lower()]
        return folded[0] if len(folded) == 1 else None


def one_line(text: str) -> str:
    """The text without the line breaks and indents that Impala writes into long type texts."""
    return _LINE_BREAKS.sub("", text.strip())


def parse_type(text: str) -> NestedType:
    """One level of a type text. Anything that is no array, map or struct has no parts."""
    text = text.strip()
    word = _WORD.match(text)
    base = word.group().lower() if word else ""
    if base not in _COMPLEX or not text.endswith(">") or "<" not in text:
        return NestedType(base)
    inner = list(_split(text[text.index("<") + 1 : -1]))
    if base == "array":
        return NestedType(base, {"item": inner[0]})
    if base == "map":
        return NestedType(base, dict(zip(("key", "value"), inner, strict=False)))
    fields = (one.partition(":") for one in inner)
    return NestedType(base, {_plain(name): kind.strip() for name, _, kind in fields if kind})


def has_map(text: str) -> bool:
    """Whether a map is anywhere in the type."""
    kind = parse_type(text)
    return kind.base == "map" or any(has_map(part) for part in kind.parts.values())


def _split(text: str) -> Generator[str]:
    """The parts between commas of the outermost level."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def _plain(name: str) -> str:
    name = name.strip()
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name
