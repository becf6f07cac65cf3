"""Which SQLAlchemy drivers are installed on this server."""

import asyncio
from importlib.metadata import entry_points
from importlib.util import find_spec

from queryserver.domain.errors.statements import DriverNotInstalled
from queryserver.network.addresses import AddressRules

_GROUP = "sqlalchemy.dialects"


class InstalledDrivers:
    """Looks once for each driver: what is installed later is seen after a restart."""

    def __init__(self, rules: AddressRules) -> None:
        """`rules` hold for what a driver connects to while it is imported."""
        self._rules = rules
        self._known = dict[str, bool]()

    @property
    def has_kerberos(self) -> bool:
        """Whether logins by tickets are possible."""
        return find_spec("gssapi") is not None

    async def has(self, driver: str) -> bool:
        """Whether the dialect `driver`, such as `oracle+oracledb`, and the package that it needs can be imported."""
        if driver not in self._known:
            # Drivers are imported for it, which takes long for some.
            self._known[driver] = await asyncio.to_thread(_is_installed, driver, self._rules)
        return self._known[driver]


def _is_installed(driver: str, rules: AddressRules) -> bool:
    import sqlalchemy as sa  # noqa: PLC0415 most servers need it for nothing else
    from sqlalchemy import dialects  # noqa: PLC0415 as above
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415 as above

    from queryserver.engines.sqlalchemy.drivers import driver_of  # noqa: PLC0415 as above

    found = {one.name for one in entry_points(group=_GROUP)}
    if driver.replace("+", ".") not in found and driver.partition("+")[0] not in {*found, *dialects.__all__}:
        return False
    try:
        dialect, _ = driver_of(sa.make_url(f"{driver}://"), rules)
    except (ArgumentError, DriverNotInstalled):
        return False
    return not dialect.is_async
