"""Which module builds the engines of which interface."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, cast

from queryserver.container.interfaces.context import BuildContext
from queryserver.domain.connector import Connector
from queryserver.interfaces.engine import Engine

_HERE = "queryserver.container.interfaces"

INTERFACES: Mapping[str, str] = MappingProxyType(
    {
        "duckdb": f"{_HERE}.duckdb",
        "hiveserver2": f"{_HERE}.hiveserver2",
        "phoenix": f"{_HERE}.phoenix",
        "sqlalchemy": f"{_HERE}.sqlalchemy",
        "sqlite": f"{_HERE}.sqlite",
        "trino": f"{_HERE}.trino",
    }
)
"""Interface to module. A module, and the driver that it needs, is imported only when a connector wants it."""


class Builder(Protocol):
    """A module of this folder."""

    def build(self, connector: Connector, context: BuildContext) -> Engine:
        """The engine of a connector; connects to nothing. Raises ConfigurationError, InvalidPath."""
        ...


def builder_of(interface: str) -> Builder | None:
    """The module that builds engines of an interface; None when this server cannot run it."""
    module = INTERFACES.get(interface)
    return cast("Builder", import_module(module)) if module else None
