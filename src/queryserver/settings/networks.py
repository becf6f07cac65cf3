"""Lists of address ranges in settings."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

Network: TypeAlias = IPv4Network | IPv6Network


def _networks(value: Any) -> Any:
    if isinstance(value, str):
        value = [name for part in value.replace("\n", ",").split(",") if (name := part.strip())]
    if not isinstance(value, list | tuple):
        return value
    return tuple(_network(name) for name in value)


def _network(name: Any) -> Network:
    if isinstance(name, IPv4Network | IPv6Network):
        return name
    try:
        return ip_network(str(name), strict=False)
    except ValueError:
        message = f"holds {str(name)[:60]!r}, which is no address range such as 10.0.0.0/8."
        raise ValueError(message) from None


Networks: TypeAlias = Annotated[tuple[Network, ...], BeforeValidator(_networks)]
"""Addresses and ranges, as a comma list or an array."""

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address in its plain form: a mapped IPv4 address as IPv4, no zone. None when `text` is no address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def contains(networks: Iterable[Network], text: str) -> bool:
    """Whether the address that `text` is lies in one of the ranges."""
    address = parsed_address(text)
    return address is not None and any(address in network for network in networks)
