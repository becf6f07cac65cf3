"""Drivers that may go through a proxy of the environment, behind which nobody checks where they are led."""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points

from queryserver.domain.findings import Finding
from queryserver.services.connector_urls import driver_of
from queryserver.settings import Settings

_KEY = "desktop.connector_policy.allowed_drivers"
_GROUP = "sqlalchemy.dialects"
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
