"""The address of a client behind proxies (Contract platform 1.6)."""

from ipaddress import ip_network

import pytest
from starlette.requests import Request

from queryserver.api.client_address import client_address

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("::1/128"))


def address(peer: str, *headers: tuple[str, str]) -> str:
    scope = {
        "type": "http",
        "client": (peer, 1),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    return client_address(Request(scope), TRUSTED)


@pytest.mark.platform(35)
def test_a_stranger_cannot_choose_its_address() -> None:
    assert (
        address("203.0.113.9", ("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=198.51.100.1")) == "203.0.113.9"
    )


@pytest.mark.platform(35)
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], "10.0.0.1"),
        ([("X-Forwarded-For", "198.51.100.1")], "198.51.100.1"),
        ([("X-Forwarded-For", "192.0.2.66, 198.51.100.1, 10.0.0.2")], "198.51.100.1"),
        ([("X-Forwarded-For", "192.0.2.66"), ("X-Forwarded-For", "198.51.100.1")], "198.51.100.1"),
        ([("X-Forwarded-For", "198.51.100.1:4711")], "198.51.100.1"),
        ([("X-Forwarded-For", "::ffff:198.51.100.1")], "198.51.100.1"),
        ([("X-Forwarded-For", "10.0.0.3, 10.0.0.2")], "10.0.0.3"),
        ([("X-Forwarded-For", "198.51.100.1, junk")], "10.0.0.1"),
        ([("X-Forwarded-For", "")], "10.0.0.1"),
        ([("Forwarded", 'for=192.0.2.66, for="[2001:db8::1]:80";proto=https;by=10.0.0.1')], "2001:db8::1"),
        ([("Forwarded", "by=10.0.0.1")], "10.0.0.1"),
        ([("Forwarded", "for=_hidden")], "10.0.0.1"),
        ([("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=198.51.100.1")], "198.51.100.1"),
        (
            [("X-Forwarded-For", "198.51.100.1, 10.0.0.2"), ("Forwarded", 'for="198.51.100.1:1"')],
            "198.51.100.1",
        ),
    ],
)
def test_behind_a_trusted_proxy_the_last_untrusted_hop_counts(headers: list[tuple[str, str]], expected: str) -> None:
    assert address("10.0.0.1", *headers) == expected


@pytest.mark.platform(35)
@pytest.mark.parametrize(
    ("x_forwarded_for", "forwarded"),
    [
        ("192.0.2.66", "for=198.51.100.1"),
        ("198.51.100.1", "for=192.0.2.66"),
        ("192.0.2.66", "for=192.0.2.66, for=198.51.100.1"),
        ("", "for=198.51.100.1"),
        ("junk", "for=198.51.100.1"),
        ("198.51.100.1", "by=10.0.0.1"),
    ],
)
def test_of_two_headers_that_disagree_one_is_the_callers_own(x_forwarded_for: str, forwarded: str) -> None:
    """A proxy writes one of them; the other one came with the call, and nobody knows which that is."""
    assert address("10.0.0.1", ("X-Forwarded-For", x_forwarded_for), ("Forwarded", forwarded)) == "10.0.0.1"
