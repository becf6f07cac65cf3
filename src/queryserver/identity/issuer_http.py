"""HTTP requests to an external issuer: https, or unencrypted HTTP on loopback addresses only."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from queryserver.platform.addresses import AddressRules
from queryserver.platform.http_client import HttpClient, HttpRequest, HttpResponse
from queryserver.platform.networks import LOOPBACK, Network


class IssuerHttp:
    """Sends requests by https with verified certificates. `ca` contains additional trusted CAs. Close it after use."""

    def __init__(self, rules: AddressRules, *, ca: Path | None) -> None:
        self._secured = HttpClient(rules, authorities=ca)
        # DNS can be spoofed, so responses over unencrypted HTTP are accepted from loopback addresses only.
        self._plain = HttpClient(replace(rules, allowed=_loopback_only(rules.allowed)))

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request. Raises EngineUnavailable, OSError (unusable CA file)."""
        client = self._secured if urlsplit(request.url).scheme == "https" else self._plain
        return await client.send(request)

    async def aclose(self) -> None:
        for client in (self._secured, self._plain):
            await client.__aexit__(None, None, None)


def _loopback_only(allowed: Sequence[Network]) -> tuple[Network, ...]:
    """Return the allowed networks restricted to loopback; all loopback networks if `allowed` is empty.

    The result is never empty, because an empty tuple would allow all addresses.
    """
    found = [network for network in LOOPBACK if not allowed]
    for network in LOOPBACK:
        overlapping = (one for one in allowed if one.version == network.version and one.overlaps(network))
        found += (max(one, network, key=lambda each: each.prefixlen) for one in overlapping)
    return tuple(found) or (ip_network("255.255.255.255/32"),)
