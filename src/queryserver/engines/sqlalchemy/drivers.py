"""The packages behind SQLAlchemy's dialects."""

import inspect
from typing import Any

import sqlalchemy as sa

from queryserver.domain.errors.statements import DriverNotInstalled
from queryserver.network.addresses import AddressRules, HostRefused
from queryserver.network.guarding import guarded, install_guard


def driver_of(url: sa.URL, rules: AddressRules) -> tuple[type[sa.Dialect], Any]:
    """The dialect of a url and the module that it talks with. Raises DriverNotInstalled.

    They are packages of others: whatever goes wrong while one is imported, it is not there to be used. One may connect
    meanwhile, which happens once only: every import of them goes through here, and is held to the rules.
    """
    install_guard()
    try:
        with guarded(rules):
            dialect = url.get_dialect()
            return dialect, _module(dialect)
    except HostRefused as error:
        text = f"The driver {url.drivername} cannot be imported on this server: it connects to where it may not."
        raise DriverNotInstalled(text) from error
    except Exception as error:  # packages of others may raise anything when they are imported
        raise DriverNotInstalled(f"The driver {url.drivername} is not installed on this server.") from error


def _module(dialect: type[sa.Dialect]) -> Any:
    older = getattr(dialect, "dbapi", None)
    if "import_dbapi" not in vars(dialect) and inspect.ismethod(older):
        return older()
    return dialect.import_dbapi()
