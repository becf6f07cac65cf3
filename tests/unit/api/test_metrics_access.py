"""Who may read the metrics (Contract platform 9.3)."""

from ipaddress import ip_network

from pydantic import SecretStr
from starlette.requests import Request
from tests.cases import each

from queryserver.api.debug import may_read_metrics
from queryserver.platform.settings.desktop import MetricsSettings

SETTINGS = MetricsSettings(allowed_networks=(ip_network("127.0.0.0/8"),), token=SecretStr("open-sesame-é"))
TRUSTED = (ip_network("127.0.0.1/32"),)


def may_read(peer: str | None, *headers: tuple[str, str], settings: MetricsSettings = SETTINGS) -> bool:
    scope = {
        "type": "http",
        "client": (peer, 1) if peer is not None else None,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    return may_read_metrics(Request(scope), settings, TRUSTED)


@each("peer", "127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1")
def test_an_allowed_network_reads_them(peer: str):
    assert may_read(peer)


@each("peer", "203.0.113.9", "::1", "", "a-socket", None)
def test_others_do_not(peer: str | None):
    assert not may_read(peer)


def test_behind_a_trusted_proxy_the_client_counts():
    assert not may_read("127.0.0.1", ("X-Forwarded-For", "203.0.113.9"))
    assert may_read("127.0.0.1", ("X-Forwarded-For", "127.0.0.7"))


def test_the_token_opens_them_from_anywhere():
    assert may_read("203.0.113.9", ("Authorization", "Bearer open-sesame-é"))
    for wrong in ("Bearer ", "Bearer open-sesame", "Bearer ÿ", "open-sesame-é"):
        assert not may_read("203.0.113.9", ("Authorization", wrong))


def test_without_a_token_none_opens_them():
    settings = MetricsSettings(allowed_networks=(), token=SecretStr(""))
    assert not may_read("203.0.113.9", ("Authorization", "Bearer "), settings=settings)
