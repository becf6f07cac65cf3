"""Where engine connections may go (Contract platform 5.11: Hosts).

A name is resolved once and its addresses are checked; the adapter connects to one of the addresses that come out,
never to the name again, whose answer may be another by then. The name still serves for TLS and `Host`.

In asyncio:  `for address in await rules.resolve(host, port): … connect(address, port), server_hostname=host …`
In a thread: `rules.resolve_blocking(host, port)`.
"""

import asyncio
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from queryserver.domain.errors import EngineUnavailable
from queryserver.settings.networks import Network, contains, parsed_address

Address: TypeAlias = IPv4Address | IPv6Address

_NAT64 = ip_network("64:ff9b::/96")
_COMPATIBLE = ip_network("::/96")


class UnknownHost(EngineUnavailable):
    """Nobody knows the name."""


class HostRefused(EngineUnavailable):
    """The rules do not permit a connection there."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that is named by its url."""

    url: str

    @property
    def host(self) -> str:
        """Name or address."""
        return urlsplit(self.url).hostname or "localhost"

    @property
    def port(self) -> int:
        """That of the url, else of its scheme."""
        return urlsplit(self.url).port or (443 if self.is_tls else 80)

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme == "https"


@dataclass(frozen=True, slots=True)
class AddressRules:
    """What engine connections may reach; without arguments everything.

    `own` are hosts and ports of the service's database and broker, which no connection may go to.
    """

    blocked: tuple[Network, ...] = ()
    allowed: tuple[Network, ...] = ()
    own: frozenset[tuple[str, int]] = frozenset()
    resolve_timeout_s: float = 5.0

    def refuses(self, host: str, port: int) -> bool:
        """Whether `host` is an address, in whatever spelling, that may not be connected to. Asks no resolver."""
        address = literal_address(host)
        if address is None:
            return False
        return not self._permits(str(address)) or any(
            its_port == port and (literal_address(own) == address or (own == "localhost" and address.is_loopback))
            for own, its_port in self.own
        )

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of `host` that may be connected to, in the resolver's order; at least one.

        Raises UnknownHost: unknown name, or no answer of the resolver in time; HostRefused: no permitted address.
        """
        if parsed_address(host) is not None and not self.own:
            return self.resolve_blocking(host, port)
        try:
            async with asyncio.timeout(self.resolve_timeout_s):
                return await asyncio.to_thread(self.resolve_blocking, host, port)
        except TimeoutError:
            raise UnknownHost(f"The host name {host} was not resolved in time.") from None

    def resolve_blocking(self, host: str, port: int) -> Sequence[str]:
        """As `resolve`; only the resolver's own time limit counts. Raises UnknownHost, HostRefused."""
        return self._checked(host, port)[0]

    def _checked(self, host: str, port: int) -> tuple[Sequence[str], Sequence[str]]:
        """The permitted addresses, and all."""
        try:
            found = _addresses(host, port)
        except (OSError, UnicodeError):
            raise UnknownHost(f"The host name {host} is not known.") from None
        permitted = [address for address in found if self._permits(address)]
        own = self._own_addresses(port)
        if not permitted or any(_is_one_of(own, parsed_address(address)) for address in found):
            raise HostRefused(f"Connections to {host} are not allowed here.")
        return permitted, found

    def require_every(self, host: str, port: int) -> None:
        """For those who resolve the name themselves: all of its addresses must be permitted. Blocks.

        Raises UnknownHost, HostRefused.
        """
        permitted, found = self._checked(host, port)
        if len(permitted) != len(found):
            raise HostRefused(f"Connections to {host} are not allowed here.")

    def _permits(self, address: str) -> bool:
        if any(contains(self.blocked, spelling) for spelling in _spellings(address)):
            return False
        return not self.allowed or contains(self.allowed, address)

    def _own_addresses(self, port: int) -> set[Address | None]:
        found = set[Address | None]()
        for host, its_port in self.own:
            if its_port == port:
                try:
                    found.update(map(parsed_address, _addresses(host, port)))
                except (OSError, UnicodeError):
                    continue  # a name that nobody resolves leads nowhere
        return found


def _spellings(address: str) -> Sequence[str]:
    """An address, and the IPv4 address that a gateway would make of it: by NAT64, 6to4, or as compatible."""
    parsed = parsed_address(address)
    if not isinstance(parsed, IPv6Address) or parsed.is_loopback:
        return (address,)
    inner = parsed.sixtofour
    if inner is None and (parsed in _NAT64 or parsed in _COMPATIBLE):
        inner = IPv4Address(int(parsed) & 0xFFFFFFFF)
    return (address,) if inner is None else (address, str(inner))


def _is_one_of(own: Collection[Address | None], address: Address | None) -> bool:
    """Whether a service at `own` listens there: one that is reached by loopback may be by any address of it."""
    if address in own:
        return True
    return address is not None and address.is_loopback and any(one is not None and one.is_loopback for one in own)


def literal_address(host: str) -> Address | None:
    """The address that `host` spells; decimal, octal, hexadecimal and short forms are those of `inet_aton`.

    None: it is a name.
    """
    plain = host.strip().strip("[]")
    try:
        plain = plain.encode("idna").decode() if not plain.isascii() else plain
        return parsed_address(plain) or parsed_address(socket.inet_ntoa(socket.inet_aton(plain)))
    except (OSError, UnicodeError, ValueError):
        return None


def _addresses(host: str, port: int) -> list[str]:
    """Every address of a name, each once. A literal address in any spelling gives itself."""
    if parsed_address(host) is not None:
        return [host]
    infos = socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
