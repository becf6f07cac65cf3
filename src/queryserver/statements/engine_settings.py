"""Engine settings that clients send with statements and sessions (Contract editor 2.3, 9.1)."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from queryserver.connectors.model import Connector
from queryserver.errors.base import InvalidParameter

_LONGEST_NAME = 100
_MOST_NAMES = 20
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Names that select whose rights a statement has, or which code the engine loads. They are refused, so that no client
# assumes that they took effect. HiveServer2 itself uses a colon, as in `use:database` and `set:hiveconf:…`.
_DANGEROUS = re.compile(
    r"(?:^|[._-])(?:proxy[._-]?user|doas|impersonat\w*|delegation|ugi|user[._-]name|role|session_authorization"
    r"|authori[sz]ation|authentication|security|privileges?|acls?|hooks?|jars?|classpath)(?:[._-]|$)|:",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FilteredSettings:
    """The settings of one call, divided into those passed on and those ignored."""

    passed_on: Mapping[str, str]
    ignored: Sequence[str]
    """Only their names, since the values may be secrets."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines for the log of the operation."""
        if not self.ignored:
            return ()
        names = [name if _PLAIN.fullmatch(name) else "?" for name in self.ignored[:_MOST_NAMES]]
        more = f" and {len(self.ignored) - _MOST_NAMES} more" if len(self.ignored) > _MOST_NAMES else ""
        return (f"WARN  : Settings that are not passed on to the engine: {', '.join(names)}{more}.",)


def filter_settings(settings: Mapping[str, str], connector: Connector, allowed: Collection[str]) -> FilteredSettings:
    """Select the allowed settings. Others are ignored, because programs written for Hue send them with each statement.

    Raises InvalidParameter for dangerous settings and, with `strict_settings`, for any that would be ignored.
    """
    unknown = [name for name in settings if name not in allowed]
    refused = unknown if connector.strict_settings else [name for name in unknown if _DANGEROUS.search(name)]
    if refused:
        raise InvalidParameter(f"settings: {refused[0][:_LONGEST_NAME]} may not be set on this connector.")
    return FilteredSettings({name: value for name, value in settings.items() if name in allowed}, unknown)
