"""IPv4 addresses inside IPv6 addresses, which gateways and tunnels connect to in their place."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_network

_LOW_32_BITS = 0xFFFF_FFFF

_IN_LOW_BITS = (
    ip_network("::/96"),  # IPv4-compatible, RFC 4291 2.5.5.1
    ip_network("::ffff:0:0/96"),  # IPv4-mapped, RFC 4291 2.5.5.2
    ip_network("::ffff:0:0:0/96"),  # IPv4-translated, RFC 2765
    ip_network("64:ff9b::/96"),  # NAT64, RFC 6052
)
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
"""RFC 8215: a site takes a prefix of any length of RFC 6052 inside it."""
_THIS_NETWORK = ip_network("0.0.0.0/8")
_ISATAP = 0x0000_5EFE
_UNIVERSAL_AND_GROUP_BITS = 0x0300_0000


def carried_addresses(address: IPv6Address) -> Iterator[IPv4Address]:
    """Every IPv4 address that `address` may stand for; none of `::` and `::1`."""
    bits = int(address)
    if bits <= 1:
        return
    if any(address in network for network in _IN_LOW_BITS):
        yield IPv4Address(bits & _LOW_32_BITS)
    if address in _LOCAL_NAT64:
        yield from _of_local_nat64(bits)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if (bits >> 32) & _LOW_32_BITS & ~_UNIVERSAL_AND_GROUP_BITS == _ISATAP:
        yield IPv4Address(bits & _LOW_32_BITS)


def _of_local_nat64(bits: int) -> Iterator[IPv4Address]:
    """By the prefix lengths 48, 56, 64 and 96: RFC 6052 2.2 leaves out the bits 64 to 71.

    The length is not known here, and the zeros around an address read as 0.0.0.0/8 by another length: those are no
    destination.
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
