"""The addresses of this server, its broker and its database, which connectors and key servers may not use."""

import re
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from queryserver.platform.addresses import AddressRules, Place
from queryserver.platform.settings.tree import Settings

_POSTGRESQL_PORT = 5432
_BROKER_PORT = 6379


def address_rules(settings: Settings) -> AddressRules:
    """The addresses that connections of this server may go to."""
    policy = settings.desktop.connector_policy
    return AddressRules(
        blocked=policy.blocked_networks,
        allowed=policy.allowed_networks,
        own=_own_places(settings),
        service_database=database_servers(settings.desktop.database.dsn or ""),
    )


def _own_places(settings: Settings) -> frozenset[Place]:
    """Host and port of the listener and of the broker."""
    desktop = settings.desktop
    found = {(desktop.http_host, desktop.http_port)}
    if desktop.task_server.enabled:
        found.update(_places(desktop.task_server.broker_url.get_secret_value(), _BROKER_PORT))
    return frozenset(found)


def database_servers(dsn: str) -> frozenset[Place]:
    """Host and port of each server that a PostgreSQL address names; that of a unix socket listens on loopback, too."""
    return frozenset(_places(dsn, _POSTGRESQL_PORT)) if dsn else frozenset()


def database_name(dsn: str) -> str:
    """The database that a PostgreSQL address names; by default that of the login's name."""
    _, parts = _hosts_apart(dsn)
    options = dict(parse_qsl(parts.query))
    return options.get("dbname") or options.get("database") or unquote(parts.path.strip("/")) or database_login(dsn)


def database_login(dsn: str) -> str:
    """The login that a PostgreSQL address names; empty without one."""
    _, parts = _hosts_apart(dsn)
    return dict(parse_qsl(parts.query)).get("user") or unquote(parts.username or "")


def _places(url: str, usual_port: int) -> Iterator[Place]:
    """Hosts and ports of a url: one, several with commas between, or those among its options."""
    named, parts = _hosts_apart(url)
    options = dict(parse_qsl(parts.query))
    hosts = (named or options.get("host", "")).split(",")
    ports = options.get("port", "").split(",")
    for number, text in enumerate(hosts):
        place = urlsplit(f"//{text}")
        own = ports[number] if number < len(ports) else ports[-1]
        host = unquote(place.hostname or "")
        port = place.port or (int(own) if own.isdecimal() else usual_port)
        yield "localhost" if not host or host.startswith("/") else host, port


def _hosts_apart(url: str) -> tuple[str, SplitResult]:
    """The hosts of a url, and the url without them: urlsplit of Python 3.14 refuses several when one is in brackets."""
    scheme, _, rest = url.partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = place.rpartition("@")
    return hosts, urlsplit(f"{scheme}://{login}{at}{rest[len(place) :]}")
