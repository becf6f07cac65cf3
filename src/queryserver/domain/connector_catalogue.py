"""The catalogue of connector types: which pairs of dialect and interface there are (Contract platform 5.10)."""

from collections.abc import Callable, Mapping, Sequence

from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.connector_rows import ROWS
from queryserver.domain.connector_settings import with_defaults
from queryserver.domain.connector_types import ConnectorType, Flags, flags

_BY_PAIR = {(row.dialect, row.interface): row for row in ROWS}
_PLAIN_SQL = flags("d", "TFTTFFFFFFF")


class Catalogue:
    """The rows with the defaults of this server: `defaults` gives those of a dialect that its settings name."""

    def __init__(self, defaults: Callable[[str], Mapping[str, SettingValue]] = lambda _dialect: {}) -> None:
        self._by_pair = {pair: with_defaults(row, defaults(row.dialect)) for pair, row in _BY_PAIR.items()}

    def all_types(self) -> Sequence[ConnectorType]:
        """All rows in their order."""
        return list(self._by_pair.values())

    def type_of(self, dialect: str, interface: str) -> ConnectorType | None:
        """The row of a pair."""
        return self._by_pair.get((dialect, interface))


def all_types() -> Sequence[ConnectorType]:
    """All rows in their order."""
    return ROWS


def type_of(dialect: str, interface: str) -> ConnectorType | None:
    """The row of a pair."""
    return _BY_PAIR.get((dialect, interface))


def flags_of(dialect: str, interface: str) -> Flags:
    """The flags of a pair. An interpreter of the settings may have another: then those of its dialect, or plain SQL."""
    row = type_of(dialect, interface) or next((one for one in ROWS if one.dialect == dialect), None)
    return _PLAIN_SQL if row is None else row.flags
