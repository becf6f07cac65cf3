"""Client addresses of requests, and the permission to read metrics (Contract platform 13)."""

from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from pydantic import SecretStr
from starlette.requests import Request
from structlog.testing import capture_logs

from queryserver.api import addresses as module
from queryserver.api.addresses import UNKNOWN, client_address
from queryserver.api.monitoring import may_read_metrics
from queryserver.platform.networks import contains, network_of
from queryserver.platform.settings.desktop import MetricsSettings

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("::1/128"))


@pytest.fixture(autouse=True)
def forget_warnings() -> Iterator[None]:
    """Forget the warnings already issued, as if the process had just started."""
    module._warn_once.cache_clear()
    yield
    module._warn_once.cache_clear()


def call(peer: str, *headers: tuple[str, str]) -> Request:
    scope = {
        "type": "http",
        "client": (peer, 1),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    return Request(scope)


def address(peer: str, *headers: tuple[str, str]) -> str:
    return client_address(call(peer, *headers), TRUSTED)


@pytest.mark.platform(35)
def test_untrusted_peer_cannot_choose_its_address() -> None:
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
        ([("X-Forwarded-For", "10.0.0.3"), ("Forwarded", "for=10.0.0.3")], "10.0.0.3"),
        ([("X-Forwarded-For", "198.51.100.1, junk")], UNKNOWN),
        ([("X-Forwarded-For", "junk, 10.0.0.2")], UNKNOWN),
        ([("X-Forwarded-For", "")], UNKNOWN),
        ([("Forwarded", "")], UNKNOWN),
        ([("Forwarded", 'for=192.0.2.66, for="[2001:db8::1]:80";proto=https;by=10.0.0.1')], "2001:db8::1"),
        ([("Forwarded", "by=10.0.0.1")], UNKNOWN),
        ([("Forwarded", "for=_hidden")], UNKNOWN),
        ([("X-Forwarded-For", ""), ("Forwarded", "for=_hidden")], UNKNOWN),
        ([("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=198.51.100.1")], "198.51.100.1"),
        ([("X-Forwarded-For", "198.51.100.1, 10.0.0.2"), ("Forwarded", 'for="198.51.100.1:1"')], "198.51.100.1"),
    ],
)
def test_last_untrusted_hop_counts_after_a_trusted_proxy(headers: list[tuple[str, str]], expected: str) -> None:
    assert address("10.0.0.1", *headers) == expected


DISAGREEING = pytest.mark.parametrize(
    ("x_forwarded_for", "forwarded"),
    [
        ("192.0.2.66", "for=198.51.100.1"),
        ("198.51.100.1", "for=192.0.2.66"),
        ("192.0.2.66", "for=192.0.2.66, for=198.51.100.1"),
        ("", "for=198.51.100.1"),
        ("junk", "for=198.51.100.1"),
        ("198.51.100.1", "by=10.0.0.1"),
        ("198.51.100.1", "for=10.0.0.1"),
        ("198.51.100.1", ""),
    ],
)


@pytest.mark.platform(35)
@DISAGREEING
def test_disagreeing_headers_give_an_unknown_address(x_forwarded_for: str, forwarded: str) -> None:
    """If a proxy wrote one header and the client the other, the server cannot tell which of them to trust."""
    assert address("10.0.0.1", ("X-Forwarded-For", x_forwarded_for), ("Forwarded", forwarded)) == UNKNOWN


@pytest.mark.platform(35)
@DISAGREEING
def test_disagreeing_headers_do_not_grant_metrics_access(x_forwarded_for: str, forwarded: str) -> None:
    settings = MetricsSettings(allowed_networks=(*TRUSTED, ip_network("127.0.0.0/8")), token=SecretStr(""))
    headers = (("X-Forwarded-For", x_forwarded_for), ("Forwarded", forwarded))
    assert not may_read_metrics(call("10.0.0.1", *headers), settings, TRUSTED)
    assert may_read_metrics(call("10.0.0.1"), settings, TRUSTED)


def test_unknown_address_matches_no_network() -> None:
    assert not contains((ip_network("0.0.0.0/0"), ip_network("::/0")), UNKNOWN)
    assert network_of(UNKNOWN) == UNKNOWN


def test_proxy_keeping_a_client_header_is_logged_once_without_values() -> None:
    with capture_logs() as lines:
        assert address("10.0.0.1", ("X-Forwarded-For", "198.51.100.1")) == "198.51.100.1"
        assert address("10.0.0.1") == "10.0.0.1"
        assert address("203.0.113.9", ("X-Forwarded-For", "junk")) == "203.0.113.9"
        assert lines == []
        for _ in range(2):
            address("10.0.0.1", ("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=planted"))
            address("10.0.0.1", ("X-Forwarded-For", "planted"))
    (line,) = lines
    assert line["log_level"] == "warning"
    assert "remove X-Forwarded-For or Forwarded, whichever" in line["advice"]
    assert not any(said in str(line) for said in ("198.51.100.1", "10.0.0.1", "planted"))


SETTINGS = MetricsSettings(allowed_networks=(ip_network("127.0.0.0/8"),), token=SecretStr("open-sesame-é"))
LOOPBACK = (ip_network("127.0.0.1/32"),)


def may_read(peer: str | None, *headers: tuple[str, str], settings: MetricsSettings = SETTINGS) -> bool:
    scope = {
        "type": "http",
        "client": (peer, 1) if peer is not None else None,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    return may_read_metrics(Request(scope), settings, LOOPBACK)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1"])
def test_allowed_network_reads_metrics(peer: str):
    assert may_read(peer)


@pytest.mark.parametrize("peer", ["203.0.113.9", "::1", "", "a-socket", None])
def test_other_networks_do_not_read_metrics(peer: str | None):
    assert not may_read(peer)


def test_metrics_access_uses_the_client_address_after_a_trusted_proxy():
    assert not may_read("127.0.0.1", ("X-Forwarded-For", "203.0.113.9"))
    assert may_read("127.0.0.1", ("X-Forwarded-For", "127.0.0.7"))


def test_token_grants_metrics_access_from_anywhere():
    assert may_read("203.0.113.9", ("Authorization", "Bearer open-sesame-é"))
    for wrong in ("Bearer ", "Bearer open-sesame", "Bearer ÿ", "open-sesame-é"):
        assert not may_read("203.0.113.9", ("Authorization", wrong))


def test_empty_token_grants_no_metrics_access():
    settings = MetricsSettings(allowed_networks=(), token=SecretStr(""))
    assert not may_read("203.0.113.9", ("Authorization", "Bearer "), settings=settings)
