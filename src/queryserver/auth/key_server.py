"""Where the public keys of another issuer come from (Contract platform 3.9 rules 2 to 4)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import structlog

from queryserver.auth.key_sets import KeySet
from queryserver.domain.errors.statements import EngineUnavailable
from queryserver.network.addresses import AddressRules
from queryserver.network.exchanges import Asked, Exchanges
from queryserver.settings.networks import LOOPBACK, Network

log = structlog.get_logger(__name__)

_MOST_BYTES = 1024 * 1024


class NoKeys(Exception):
    """No key server gave a usable answer."""


class KeySource(Protocol):
    """Gives the keys as they are now."""

    async def fetch(self) -> KeySet:
        """Raises NoKeys."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class KeyServers:
    """See KeySource: asks a list of addresses, first the one that answered last. `ca`: authorities trusted besides."""

    def __init__(self, urls: Sequence[str], *, rules: AddressRules, ca: Path | None, timeout_s: float) -> None:
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._secured = Exchanges(rules, authorities=ca)
        # What a name means is decided by others: keys in the clear come from this machine or not at all.
        self._plain = Exchanges(replace(rules, allowed=tuple(_loopback(rules.allowed)) or _NOWHERE))

    async def fetch(self) -> KeySet:
        """The keys of the first address that answers as it should, each in its time. Raises NoKeys."""
        for url in list(self._urls):
            try:
                keys = await self._from(url)
            except (EngineUnavailable, ValueError, OSError) as error:
                reason = error.message if isinstance(error, EngineUnavailable) else str(error)
                log.warning("key server gives no keys", host=urlsplit(url).hostname, reason=reason)
            else:
                self._urls.sort(key=lambda one: one != url)
                return keys
        raise NoKeys

    async def aclose(self) -> None:
        """Close connections."""
        for exchanges in (self._secured, self._plain):
            await exchanges.__aexit__(None, None, None)

    async def _from(self, url: str) -> KeySet:
        """Raises EngineUnavailable, ValueError (no such document), OSError (the file of authorities)."""
        exchanges = self._secured if urlsplit(url).scheme == "https" else self._plain
        asked = Asked(url, headers={"Accept": "application/json"}, max_bytes=_MOST_BYTES, within_s=self._timeout_s)
        answered = await exchanges.send(asked)
        if answered.status != 200:
            message = f"it answers {answered.status}"
            raise ValueError(message)
        keys = KeySet.parse(answered.body)
        if not keys.keys:
            log.warning("key server has no usable key", host=urlsplit(url).hostname)
        return keys


# An empty list would allow everything.
_NOWHERE: tuple[Network, ...] = (ip_network("255.255.255.255/32"),)


def _loopback(allowed: Sequence[Network]) -> Iterator[Network]:
    """What of the loopback addresses is allowed; an empty list allows all."""
    for network in LOOPBACK:
        if not allowed:
            yield network
        for one in allowed:
            if one.version == network.version and one.overlaps(network):
                yield max(one, network, key=lambda each: each.prefixlen)
