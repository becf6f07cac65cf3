"""Addresses and ranges of addresses."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address in its plain form: a mapped IPv4 address as IPv4, no zone. None when `text` is no address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """The range of one client: an IPv4 address, or the /64 network of an IPv6 address, which one subscriber owns.

    What is no address stays as it is.
    """
    address = parsed_address(text)
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return text if address is None else str(address)


def contains(networks: Iterable[Network], text: str) -> bool:
    """Whether the address that `text` is lies in one of the ranges."""
    address = parsed_address(text)
    return address is not None and any(address in network for network in networks)
