"""Where engine connections may go (Contract platform 5.11: Hosts).

A name is resolved once and its addresses are checked; the adapter connects to one of the addresses that come out,
never to the name again, whose answer may be another by then. The name still serves for TLS and `Host`.

In asyncio:  `for address in await rules.resolve(host, port): … connect(address, port), server_hostname=host …`
In a thread: `rules.resolve_blocking(host, port)`.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from queryserver.domain.errors import EngineUnavailable
from queryserver.settings.networks import Network, contains, parsed_address


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

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of `host` that may be connected to, in the resolver's order; at least one.

        Raises EngineUnavailable: unknown name, no answer of the resolver in time, or no permitted address.
        """
        if parsed_address(host) is not None and not self.own:
            return self.resolve_blocking(host, port)
        try:
            async with asyncio.timeout(self.resolve_timeout_s):
                return await asyncio.to_thread(self.resolve_blocking, host, port)
        except TimeoutError:
            raise EngineUnavailable(f"The host name {host} was not resolved in time.") from None

    def resolve_blocking(self, host: str, port: int) -> Sequence[str]:
        """As `resolve`; only the resolver's own time limit counts. Raises EngineUnavailable."""
        try:
            found = _addresses(host, port)
        except (OSError, UnicodeError):
            raise EngineUnavailable(f"The host name {host} is not known.") from None
        permitted = [address for address in found if self._permits(address)]
        if not permitted or not self._own_addresses(port).isdisjoint(map(parsed_address, found)):
            raise EngineUnavailable(f"Connections to {host} are not allowed here.")
        return permitted

    def _permits(self, address: str) -> bool:
        return not contains(self.blocked, address) and (not self.allowed or contains(self.allowed, address))

    def _own_addresses(self, port: int) -> set[object]:
        found = set[object]()
        for host, its_port in self.own:
            if its_port == port:
                try:
                    found.update(map(parsed_address, _addresses(host, port)))
                except (OSError, UnicodeError):
                    continue  # a name that nobody resolves leads nowhere
        return found


def _addresses(host: str, port: int) -> list[str]:
    """Every address of a name, each once. A literal address in any spelling gives itself."""
    if parsed_address(host) is not None:
        return [host]
    infos = socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
