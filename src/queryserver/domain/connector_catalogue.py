"""The catalogue of connector types: which pairs of dialect and interface there are (Contract platform 5.10)."""

from collections.abc import Sequence

from queryserver.domain.connector_rows import ROWS
from queryserver.domain.connector_types import ConnectorType, Flags, flags

_BY_PAIR = {(row.dialect, row.interface): row for row in ROWS}
_PLAIN_SQL = flags("d", "TFTTFFFFFFF")


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
