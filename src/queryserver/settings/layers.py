"""What one source says, as a tree of known keys; and several of them joined, the later ones on top."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queryserver.settings.schema import SECRET_OPTIONS, Key, keys
from queryserver.settings.section import Section
from queryserver.settings.tree import Origin, Settings
from queryserver.settings.twins import Twin


@dataclass(slots=True)
class Problems:
    """Everything that is wrong, at most one line per key."""

    by_key: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, key: str, text: str) -> None:
        """The first complaint about a key stays."""
        self.by_key.setdefault(key, text)

    def lines(self) -> list[str]:
        """`<full.key>: <text>`."""
        return [f"{key}: {text}" for key, text in self.by_key.items()]


@dataclass(slots=True)
class Layers:
    """The joined tree and the origin of each value in it."""

    problems: Problems
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    origins: dict[str, Origin] = field(default_factory=dict[str, Origin])

    def put(self, given: Mapping[str, Any], origin: Origin) -> None:
        """Lay one source on top. Unknown keys become problems."""
        self._section(Settings, given, self.values, "", origin)

    def _section(
        self, section: type[Section], given: Mapping[str, Any], into: dict[str, Any], prefix: str, origin: Origin
    ) -> None:
        known = keys(section)
        seen: set[str] = set()
        for written, value in given.items():
            name, twin = _base_key(written.lower(), known)
            full = f"{prefix}{name}"
            if name not in known:
                self.problems.add(full, _unknown(name, known))
            elif name in seen:
                self.problems.add(full, "is given twice; its twins _file and _script count too.")
            else:
                seen.add(name)
                self._key(known[name], Twin(twin, value) if twin else value, into, full, origin)

    def _key(self, key: Key, value: Any, into: dict[str, Any], full: str, origin: Origin) -> None:
        if not (key.section or key.entries or key.has_free_names):
            into[key.name] = value
            self.origins[full] = origin
        elif not isinstance(value, Mapping):
            self.problems.add(full, "must be a table.")
        elif key.section:
            self._section(key.section, value, into.setdefault(key.name, {}), f"{full}.", origin)
        elif key.entries:
            self._entries(key.entries, value, into.setdefault(key.name, {}), full, origin)
        else:
            self._options(value, into.setdefault(key.name, {}), full, origin)

    def _entries(
        self, section: type[Section], given: Mapping[str, Any], into: dict[str, Any], full: str, origin: Origin
    ) -> None:
        for name, value in given.items():
            known = _same_name(name, into)
            if isinstance(value, Mapping):
                self._section(section, value, into.setdefault(known, {}), f"{full}.{known}.", origin)
            else:
                self.problems.add(f"{full}.{known}", "must be a table.")

    def _options(self, given: Mapping[str, Any], into: dict[str, Any], full: str, origin: Origin) -> None:
        for written, value in given.items():
            base, twin = _base_option(written)
            name = _same_name(base, into)
            into[name] = Twin(twin, value) if twin else value
            self.origins[f"{full}.{name}"] = origin


def _base_key(name: str, known: Mapping[str, Key]) -> tuple[str, str]:
    """A key and which of its twins is meant: `file`, `script` or none."""
    if name not in known:
        base, _, ending = name.rpartition("_")
        if ending in {"file", "script"} and base in known and known[base].is_secret:
            return base, ending
    return name, ""


def _base_option(name: str) -> tuple[str, str]:
    base, _, ending = name.rpartition("_")
    return (base, ending) if ending in {"file", "script"} and base in SECRET_OPTIONS else (name, "")


def _same_name(name: str, present: Mapping[str, Any]) -> str:
    """Names from the environment have no case of their own: they mean what the file has."""
    return next((other for other in present if other.lower() == name.lower()), name)


def _unknown(name: str, known: Mapping[str, Key]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"is not a known key; did you mean {close[0]}?" if close else "is not a known key."
