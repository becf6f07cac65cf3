"""Engine settings that clients send with statements and sessions (Contract editor 2.3, 9.1)."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from queryserver.connectors.model import Connector
from queryserver.errors.base import InvalidParameter

_LONGEST_NAME = 100
_MOST_NAMES = 20
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Names that say whose rights a statement has, or which code the engine loads. A client that sends one must not believe
# that it is in force. The colon is in the words of HiveServer2 itself, such as `use:database` and `set:hiveconf:…`.
_DANGEROUS = re.compile(
    r"(?:^|[._-])(?:proxy[._-]?user|doas|impersonat\w*|delegation|ugi|user[._-]name|role|session_authorization"
    r"|authori[sz]ation|authentication|security|privileges?|acls?|hooks?|jars?|classpath)(?:[._-]|$)|:",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """What becomes of the settings of one call."""

    passed_on: Mapping[str, str]
    ignored: Sequence[str]
    """Names, without the values, which may be anything."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines for the log of the operation."""
        if not self.ignored:
            return ()
        names = [name if _PLAIN.fullmatch(name) else "?" for name in self.ignored[:_MOST_NAMES]]
        more = f" and {len(self.ignored) - _MOST_NAMES} more" if len(self.ignored) > _MOST_NAMES else ""
        return (f"WARN  : Settings that are not passed on to the engine: {', '.join(names)}{more}.",)


def chosen_settings(settings: Mapping[str, str], connector: Connector, allowed: Collection[str]) -> ChosenSettings:
    """The allowed settings. Other ones are ignored, because programs written for Hue send them with every statement.

    Raises InvalidParameter for dangerous settings, and if the connector has `strict_settings` for any that is ignored.
    """
    unknown = [name for name in settings if name not in allowed]
    refused = unknown if connector.strict_settings else [name for name in unknown if _DANGEROUS.search(name)]
    if refused:
        raise InvalidParameter(f"settings: {refused[0][:_LONGEST_NAME]} may not be set on this connector.")
    return ChosenSettings({name: value for name, value in settings.items() if name in allowed}, unknown)
