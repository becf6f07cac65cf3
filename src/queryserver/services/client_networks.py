"""Whose an address is, where callers are counted by it."""

from ipaddress import IPv6Address, IPv6Network, ip_address


def is_address(text: str) -> bool:
    """Whether it is an address: of a caller whom no proxy names clearly, it is the text `unknown`."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def network_of(address: str) -> str:
    """What one caller has: an IPv6 network of 64 bits, or the address itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Network((parsed, 64), strict=False))
    return str((isinstance(parsed, IPv6Address) and parsed.ipv4_mapped) or parsed)
