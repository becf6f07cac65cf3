"""What is wrong with the options of a connector: for the operator's settings, and for who sent an instance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from queryserver.domain.errors import (
    ConfigurationError,
    ConnectorRefused,
    driver_not_allowed,
    host_not_allowed,
    option_not_allowed,
)


class Kind(IntEnum):
    """Of several kinds the first decides the code of the answer."""

    DRIVER = 1
    OPTION = 2
    HOST = 3
    INVALID = 4
    LACK = 5
    """Nothing is wrong but that this server lacks a package."""


_ERRORS: Mapping[Kind, Callable[[Mapping[str, Sequence[str]]], ConnectorRefused]] = MappingProxyType(
    {
        Kind.DRIVER: driver_not_allowed,
        Kind.OPTION: option_not_allowed,
        Kind.HOST: host_not_allowed,
        Kind.INVALID: ConnectorRefused,
        Kind.LACK: ConnectorRefused,
    }
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of one option. `text` holds no value that could be a secret."""

    setting: str
    text: str
    kind: Kind = Kind.INVALID

    @property
    def sentence(self) -> str:
        """For the answer, where the name stands beside it."""
        return f"{self.text[:1].upper()}{self.text[1:]}."


class OptionsRefused(ConfigurationError):
    """Options that this server does not take; its lines name the place in the settings."""

    def __init__(self, key: str, found: Sequence[Problem]) -> None:
        super().__init__(sorted(f"notebook.interpreters.{key}.options.{one.setting}: {one.text}." for one in found))
        self.found = tuple(found)

    @property
    def is_lack(self) -> bool:
        """Whether only packages are missing."""
        return all(one.kind is Kind.LACK for one in self.found)

    def refusal(self) -> ConnectorRefused:
        """The same for who sent the connector."""
        texts = dict[str, list[str]]()
        for one in self.found:
            texts.setdefault(one.setting, []).append(one.sentence)
        return _ERRORS[min(one.kind for one in self.found)](texts)
