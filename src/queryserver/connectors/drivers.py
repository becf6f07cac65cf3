"""Which SQLAlchemy drivers are installed, and which of them may go through a proxy."""

import asyncio
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec

from queryserver.connectors.urls import driver_of
from queryserver.errors.statements import DriverNotInstalled
from queryserver.platform.addresses import AddressRules
from queryserver.platform.settings.rules import Finding
from queryserver.platform.settings.tree import Settings

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

    from queryserver.engines.sqlalchemy.engine import driver_of  # noqa: PLC0415 as above

    found = {one.name for one in entry_points(group=_GROUP)}
    if driver.replace("+", ".") not in found and driver.partition("+")[0] not in {*found, *dialects.__all__}:
        return False
    try:
        dialect, _ = driver_of(sa.make_url(f"{driver}://"), rules)
    except (ArgumentError, DriverNotInstalled):
        return False
    return not dialect.is_async


_KEY = "desktop.connector_policy.allowed_drivers"
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_NATIVE = frozenset({"postgresql", "mysql", "trino", "phoenix"})
"""Dialects of adapters of this server, which take no proxy from the environment."""


def proxied_drivers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """A warning where a proxy meets allowed drivers of installed packages; nothing is imported.

    The dialects that come with SQLAlchemy do not count: their drivers speak no HTTP.
    """
    if not _names_proxy(environ):
        return
    installed = {one.name.partition(".")[0] for one in entry_points(group=_GROUP)} - _NATIVE
    drivers = [name for name in settings.desktop.connector_policy.allowed_drivers if driver_of(name)[1] in installed]
    if drivers:
        text = (
            f"names {', '.join(drivers)}: such drivers may go through the proxy that the environment of this server"
            " names, and no rule for addresses reaches behind it."
        )
        yield Finding.warning(_KEY, text)


def _names_proxy(environ: Mapping[str, str]) -> bool:
    """As urllib and requests read it: in any case, and `no_proxy=*` switches all of them off."""
    given = {name.lower(): text for name, text in environ.items() if text}
    return not _PROXIES.isdisjoint(given) and given.get("no_proxy") != "*"
