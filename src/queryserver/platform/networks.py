"""IP addresses and networks."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address. IPv4-mapped IPv6 addresses become IPv4 addresses, and zone ids are dropped.

    Returns None if `text` is not an address.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """Return a client's network: the address itself for IPv4; the /64 network for IPv6, which one subscriber owns.

    A string that is not an address is returned unchanged.
    """
    address = parsed_address(text)
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return text if address is None else str(address)


def contains(networks: Iterable[Network], text: str) -> bool:
    """Return whether `text` is an address in one of the networks."""
    address = parsed_address(text)
    return address is not None and any(address in network for network in networks)
