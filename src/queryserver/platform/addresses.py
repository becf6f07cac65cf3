"""Rules for the destinations of engine connections (Contract platform 5.11: Hosts).

A host name is resolved once, and each address is checked. The adapter then connects to one of the returned addresses,
because resolving the name again could return a different address (DNS rebinding). TLS and the `Host` header still use
the name.

In asyncio: `for address in await rules.resolve(host, port): … connect(address, port), server_hostname=host …`
In a thread: `rules.resolve_blocking(host, port)`.
"""

import asyncio
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import TYPE_CHECKING, Self, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.networks import Network, contains, parsed_address

if TYPE_CHECKING:  # engine processes load neither the settings nor pydantic
    from queryserver.platform.settings.tree import Settings

Address: TypeAlias = IPv4Address | IPv6Address
Endpoint: TypeAlias = tuple[str, int]
"""Host and port."""

_POSTGRESQL_PORT = 5432
_BROKER_PORT = 6379
_DISCARD_PORT = 9
_LOOPBACK = IPv4Address("127.0.0.1")
_OWN_ENDPOINT = "this is an address of the service itself"
_DATABASE_SERVER = (
    "this is the server of the service's own database. An administrator can permit its other databases for URLs"
    " with postgresql://, through desktop.connector_policy.allow_service_database_server"
)
_LOW_32_BITS = 0xFFFF_FFFF
_IPV4_PREFIXES = (
    ip_network("::/96"),  # IPv4-compatible, RFC 4291 2.5.5.1
    ip_network("::ffff:0:0/96"),  # IPv4-mapped, RFC 4291 2.5.5.2
    ip_network("::ffff:0:0:0/96"),  # IPv4-translated, RFC 2765
    ip_network("64:ff9b::/96"),  # NAT64, RFC 6052
)
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
"""RFC 8215: a site may use any prefix within this network, with any length that RFC 6052 defines."""
_THIS_NETWORK = ip_network("0.0.0.0/8")
_INTERNAL_NETWORKS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT, RFC 6598
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "224.0.0.0/3",  # multicast, reserved, broadcast
            "::/127",
            "64:ff9b:1::/48",
            "fc00::/7",
            "fe80::/9",  # link-local, and site-local of RFC 3513
            "ff00::/8",
        ),
    )
)
"""Loopback, private, link-local, shared, multicast and reserved networks."""
_ISATAP = 0x0000_5EFE
_UNIVERSAL_AND_GROUP_BITS = 0x0300_0000


def embedded_ipv4_addresses(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that `address` may embed. `::` and `::1` embed none."""
    bits = int(address)
    if bits <= 1:
        return
    if any(address in network for network in _IPV4_PREFIXES):
        yield IPv4Address(bits & _LOW_32_BITS)
    if address in _LOCAL_NAT64:
        yield from _embedded_in_local_nat64(bits)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if (bits >> 32) & _LOW_32_BITS & ~_UNIVERSAL_AND_GROUP_BITS == _ISATAP:
        yield IPv4Address(bits & _LOW_32_BITS)


def _embedded_in_local_nat64(bits: int) -> Iterator[IPv4Address]:
    """Yield the IPv4 address embedded under each prefix length: 48, 56, 64 and 96 (RFC 6052 2.2; bits 64 to 71 unused).

    The site's prefix length is unknown. Under a wrong length, zero padding reads as an address in 0.0.0.0/8. Such
    addresses are skipped because they are not valid destinations.
    """
    without_octet_64 = ((bits >> 64) << 56) | (bits & ((1 << 56) - 1))
    found = (
        (without_octet_64 >> 40) & _LOW_32_BITS,  # bits 48 to 63 and 72 to 87
        (without_octet_64 >> 32) & _LOW_32_BITS,  # bits 56 to 63 and 72 to 95
        (without_octet_64 >> 24) & _LOW_32_BITS,  # bits 72 to 103
        bits & _LOW_32_BITS,
    )
    for one in map(IPv4Address, found):
        if one not in _THIS_NETWORK:
            yield one


class UnknownHost(EngineUnavailable):
    """The host name cannot be resolved."""


class HostRefused(EngineUnavailable):
    """The address rules forbid a connection to this host."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server identified by its URL."""

    url: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "localhost"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.is_tls else 80)

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"


@dataclass(frozen=True, slots=True)
class AddressRules:
    """The hosts that engine connections may reach. By default, every host is permitted.

    `own` contains the endpoints of the service's listener and broker; `service_database` those of its database server.
    Connections to these endpoints are refused under any address of the machine. Addresses in `blocked` are always
    refused. Addresses in `closed` are refused unless they are also in `opened`. If `allowed` is not empty, only
    addresses in `allowed` are permitted.
    """

    blocked: tuple[Network, ...] = ()
    allowed: tuple[Network, ...] = ()
    closed: tuple[Network, ...] = ()
    opened: tuple[Network, ...] = ()
    own: frozenset[Endpoint] = frozenset()
    service_database: frozenset[Endpoint] = frozenset()
    resolve_timeout_s: float = 5.0

    def refusal(self, host: str, port: int) -> str | None:
        """Return the reason why a literal address, in any notation, is forbidden. Does not call the resolver.

        Returns None for a host name or a permitted address. The reason has no final period.
        """
        address = literal_address(host)
        if address is None:
            return None
        if reason := self._own_endpoint_refusal([str(address)], port, resolve=False):
            return reason
        return None if self._permits(str(address)) else "connections to this address are not allowed"

    def allowing_database_server(self) -> Self:
        """Return the same rules, except that connections to the service database's server are permitted."""
        return replace(self, service_database=frozenset())

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the permitted addresses of `host` in the resolver's order; at least one.

        Raises UnknownHost if the name is unknown or the resolver times out; HostRefused if no address is permitted.
        """
        if parsed_address(host) is not None and all(
            its_port != port for _, its_port in self.own | self.service_database
        ):
            return self.resolve_blocking(host, port)
        try:
            async with asyncio.timeout(self.resolve_timeout_s):
                return await asyncio.to_thread(self.resolve_blocking, host, port)
        except TimeoutError:
            raise UnknownHost(f"The host name {host} was not resolved in time.") from None

    def resolve_blocking(self, host: str, port: int) -> Sequence[str]:
        """Do the same as `resolve` in the calling thread. Only the resolver's own timeout applies.

        Raises UnknownHost, HostRefused.
        """
        return self._resolve_checked(host, port)[0]

    def require_all(self, host: str, port: int) -> None:
        """Raise HostRefused unless every address of `host` is permitted, for drivers that resolve names themselves.

        Blocks. Raises UnknownHost if the name cannot be resolved.
        """
        permitted, found = self._resolve_checked(host, port)
        if len(permitted) != len(found):
            raise HostRefused(f"Connections to {host} are not allowed here.")

    def is_database_server(self, addresses: Iterable[str], port: int) -> bool:
        """Return whether one of the addresses belongs to the service database's server. Blocks."""
        return _reaches_own_service(_resolve_endpoints(self.service_database, port), addresses)

    def is_database_server_address(self, host: str, port: int) -> bool:
        """Return whether `host` is a literal address, in any notation, of the service database's server.

        Does not call the resolver, so a database server that is configured by host name is recognized only if the name
        is localhost.
        """
        address = literal_address(host)
        servers = _resolve_endpoints(self.service_database, port, resolve=False)
        return address is not None and _reaches_own_service(servers, [str(address)])

    def _resolve_checked(self, host: str, port: int) -> tuple[Sequence[str], Sequence[str]]:
        """Return the permitted addresses and all addresses. Raises UnknownHost, HostRefused."""
        try:
            found = _addresses(host, port)
        except (OSError, UnicodeError):
            raise UnknownHost(f"The host name {host} could not be resolved.") from None
        if reason := self._own_endpoint_refusal(found, port):
            raise HostRefused(f"Connections to {host} are not allowed here: {reason}.")
        permitted = [address for address in found if self._permits(address)]
        if not permitted:
            raise HostRefused(f"Connections to {host} are not allowed here.")
        return permitted, found

    def _permits(self, address: str) -> bool:
        for reading in map(str, _equivalent_addresses(address)):
            if contains(self.blocked, reading):
                return False
            if contains(self.closed, reading) and not contains(self.opened, reading):
                return False
        return not self.allowed or contains(self.allowed, address)

    def _own_endpoint_refusal(self, addresses: Iterable[str], port: int, *, resolve: bool = True) -> str | None:
        """Return why the addresses are refused as an endpoint of the service itself; None if they are not one."""
        targets = list(addresses)
        for endpoints, reason in ((self.own, _OWN_ENDPOINT), (self.service_database, _DATABASE_SERVER)):
            if _reaches_own_service(_resolve_endpoints(endpoints, port, resolve=resolve), targets):
                return reason
        return None


def _resolve_endpoints(endpoints: Iterable[Endpoint], port: int, *, resolve: bool = True) -> set[Address]:
    """Return the addresses of the endpoints that have this port.

    If `resolve` is false, host names other than `localhost` are skipped.
    """
    found = set[Address]()
    for host, its_port in endpoints:
        if its_port != port:
            continue
        if host == "localhost":
            found.add(_LOOPBACK)
        if not resolve:
            found.update(one for one in [literal_address(host)] if one is not None)
            continue
        try:
            found.update(one for one in map(parsed_address, _addresses(host, port)) if one is not None)
        except (OSError, UnicodeError):
            continue  # no connection can reach an unresolvable name
    return found


def _reaches_own_service(own: Collection[Address], addresses: Iterable[str]) -> bool:
    """Return whether a connection to one of `addresses` reaches a service that listens at `own`.

    If `own` contains an address of this machine, the service is also reachable at every other address of this machine.
    """
    if not own:
        return False
    targets = {reading for address in addresses for reading in _equivalent_addresses(address)}
    return not targets.isdisjoint(own) or (any(map(_is_local, own)) and any(map(_is_local, targets)))


def _is_local(address: Address) -> bool:
    """Return whether the address belongs to this machine.

    For a destination on this machine, the kernel selects the destination itself as the source address. No packet is
    sent.
    """
    if address.is_loopback or address.is_unspecified:
        return True
    if address.is_multicast:
        return False
    if isinstance(address, IPv4Address):
        return _is_source_address(socket.AF_INET, address)
    if not address.is_link_local:
        return _is_source_address(socket.AF_INET6, address)
    # A link-local address needs a scope id. The caller's scope id is ignored, as it may be a name or a number.
    return any(_is_source_address(socket.AF_INET6, address, 0, number) for number, _ in socket.if_nameindex())


def _is_source_address(family: int, address: Address, *scope: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT, *scope))
            return parsed_address(str(probe.getsockname()[0])) == address
    except OSError:  # no route, or the machine lacks this address family
        return False


def _equivalent_addresses(address: str) -> Sequence[Address]:
    """Return the address and the IPv4 addresses to which a gateway or tunnel may translate it."""
    parsed = parsed_address(address)
    if parsed is None:
        return ()
    return (parsed, *(embedded_ipv4_addresses(parsed) if isinstance(parsed, IPv6Address) else ()))


def literal_address(host: str) -> Address | None:
    """Parse a literal address, including the decimal, octal, hexadecimal and short forms that `inet_aton` accepts.

    Returns None for a host name.
    """
    plain = host.strip().strip("[]")
    try:
        plain = plain.encode("idna").decode() if not plain.isascii() else plain
        return parsed_address(plain) or parsed_address(socket.inet_ntoa(socket.inet_aton(plain)))
    except (OSError, UnicodeError, ValueError):
        return None


def _addresses(host: str, port: int) -> list[str]:
    """Return all distinct addresses of a name. A standard literal address is returned as is."""
    if parsed_address(host) is not None:
        return [host]
    infos = socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def address_rules(settings: "Settings") -> AddressRules:
    """Return the address rules for connectors, key servers and catalogs."""
    desktop, policy = settings.desktop, settings.desktop.connector_policy
    own = {(desktop.http_host, desktop.http_port)}
    if desktop.task_server.enabled:
        own.update(_endpoints(desktop.task_server.broker_url.get_secret_value(), _BROKER_PORT))
    return AddressRules(
        blocked=policy.blocked_networks,
        allowed=policy.allowed_networks,
        own=frozenset(own),
        service_database=database_servers(desktop.database.dsn or ""),
    )


def webhook_rules(settings: "Settings") -> AddressRules:
    """Return the address rules for webhooks. Users choose the URLs, so internal networks must be opened explicitly."""
    opened = settings.desktop.task_server.webhook_allowed_networks
    return replace(address_rules(settings), allowed=(), closed=_INTERNAL_NETWORKS, opened=opened)


def database_servers(dsn: str) -> frozenset[Endpoint]:
    """Return the endpoints in a PostgreSQL DSN. A Unix socket counts as localhost, where its server may also listen."""
    return frozenset(_endpoints(dsn, _POSTGRESQL_PORT)) if dsn else frozenset()


def database_name(dsn: str) -> str:
    """Return the database name in a PostgreSQL DSN; defaults to the login name."""
    _, parts = _split_hosts(dsn)
    options = dict(parse_qsl(parts.query))
    return options.get("dbname") or options.get("database") or unquote(parts.path.strip("/")) or database_login(dsn)


def database_login(dsn: str) -> str:
    """Return the login name in a PostgreSQL DSN; empty if it has none."""
    _, parts = _split_hosts(dsn)
    return dict(parse_qsl(parts.query)).get("user") or unquote(parts.username or "")


def _endpoints(url: str, usual_port: int) -> Iterator[Endpoint]:
    """Yield the endpoints of a URL, which may list several hosts separated by commas or name them in query options."""
    named, parts = _split_hosts(url)
    options = dict(parse_qsl(parts.query))
    hosts = (named or options.get("host", "")).split(",")
    ports = options.get("port", "").split(",")
    for number, text in enumerate(hosts):
        place = urlsplit(f"//{text}")
        own = ports[number] if number < len(ports) else ports[-1]
        host = unquote(place.hostname or "")
        port = place.port or (int(own) if own.isdecimal() else usual_port)
        yield "localhost" if not host or host.startswith("/") else host, port


def _split_hosts(url: str) -> tuple[str, SplitResult]:
    """Split a URL into its host list and the URL without hosts, parsed.

    Since Python 3.14, urlsplit rejects host lists with brackets.
    """
    scheme, _, rest = url.partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = place.rpartition("@")
    return hosts, urlsplit(f"{scheme}://{login}{at}{rest[len(place) :]}")
