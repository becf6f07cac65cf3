"""IPv4 addresses inside IPv6 addresses: the examples of RFC 6052 2.4 and of each other form."""

from ipaddress import IPv4Address, IPv6Address

import pytest

from queryserver.platform.addresses import carried_addresses


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::192.0.2.33",
        "64:ff9b:1:c000:2:2100::",
        "64:ff9b:1:c0:0:221::",
        "64:ff9b:1:0:c0:2:2100:0",
        "64:ff9b:1::192.0.2.33",
        "::ffff:192.0.2.33",
        "::ffff:0:192.0.2.33",
        "::192.0.2.33",
        "2002:c000:221::1",
        "2001:0:c000:221:0:0:102:304",
        "2001:0:102:304:0:0:3fff:fdde",
        "fe80::5efe:192.0.2.33",
        "2001:db8::200:5efe:192.0.2.33",
        "2001:db8::100:5efe:192.0.2.33",
    ],
)
def test_the_address_inside_is_found(address: str) -> None:
    assert IPv4Address("192.0.2.33") in list(carried_addresses(IPv6Address(address)))


@pytest.mark.parametrize("address", ["::", "::1", "2001:db8::1", "fd00::1", "fe80::1", "64:ff9b:2::1", "64:ff9b:1::"])
def test_others_carry_none(address: str) -> None:
    assert list(carried_addresses(IPv6Address(address))) == []


def test_the_zeros_around_an_address_are_not_taken_for_one() -> None:
    found = carried_addresses(IPv6Address("64:ff9b:1::10.0.0.1"))
    assert list(found) == [IPv4Address("10.0.0.1")]
