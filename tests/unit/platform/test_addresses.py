"""Addresses to which engines may connect, and IPv4 addresses embedded in IPv6 addresses (Contract platform 5.11)."""

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import (
    AddressRules,
    HostRefused,
    address_rules,
    embedded_ipv4_addresses,
    webhook_rules,
)
from queryserver.platform.settings.editor import ConnectorPolicySettings
from queryserver.platform.settings.tree import Settings

DEFAULTS = AddressRules(blocked=ConnectorPolicySettings().blocked_networks)


@pytest.mark.parametrize("host",
    ["169.254.169.254", "0.0.0.0", "::", "fe80::1", "fe80::1%lo", "224.0.0.1", "255.255.255.255", "100.100.100.200",
    "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "0xa9fea9fe",
    "2852039166", "169.254.43518", "0251.0376.0251.0376", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1",
    "::169.254.169.254"])  # fmt: skip
async def test_blocked_addresses_are_refused_in_every_spelling(host: str) -> None:
    with pytest.raises(EngineUnavailable, match="are not allowed here"):
        await DEFAULTS.resolve(host, 80)


async def test_host_name_resolves_to_its_addresses() -> None:
    assert set(await DEFAULTS.resolve("localhost", 80)) <= {"127.0.0.1", "::1"}
    assert await AddressRules(allowed=(ip_network("127.0.0.0/8"),)).resolve("127.1", 80) == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["no-such-name.invalid", "a" * 300, "x..y", "nul\0l"])
async def test_unknown_host_name_is_reported(host: str) -> None:
    with pytest.raises(EngineUnavailable, match="could not be resolved"):
        await DEFAULTS.resolve(host, 80)


async def test_slow_resolver_times_out() -> None:
    rules = AddressRules(own=frozenset({("localhost", 80)}), resolve_timeout_s=0)
    with pytest.raises(EngineUnavailable, match="was not resolved in time"):
        await rules.resolve("localhost", 80)


async def test_own_services_are_refused_by_address_and_port() -> None:
    rules = AddressRules(own=frozenset({("localhost", 5432)}))
    with pytest.raises(EngineUnavailable, match="are not allowed here"):
        await rules.resolve("127.0.0.1", 5432)
    with pytest.raises(HostRefused):
        await rules.resolve("127.8.8.8", 5432)
    assert await rules.resolve("127.0.0.1", 5433) == ["127.0.0.1"]


async def test_host_name_resolved_again_must_have_only_permitted_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolver(_host: str, port: int, **_: object) -> list[object]:
        return [(2, 1, 6, "", (one, port)) for one in ("10.0.0.1", "169.254.169.254")]

    monkeypatch.setattr("socket.getaddrinfo", resolver)
    assert DEFAULTS.resolve_blocking("mixed.example", 443) == ["10.0.0.1"]
    with pytest.raises(HostRefused):
        DEFAULTS.require_all("mixed.example", 443)


@pytest.mark.parametrize("address",
    ["64:ff9b::192.0.2.33", "64:ff9b:1:c000:2:2100::", "64:ff9b:1:c0:0:221::", "64:ff9b:1:0:c0:2:2100:0",
    "64:ff9b:1::192.0.2.33", "::ffff:192.0.2.33", "::ffff:0:192.0.2.33", "::192.0.2.33", "2002:c000:221::1",
    "2001:0:c000:221:0:0:102:304", "2001:0:102:304:0:0:3fff:fdde", "fe80::5efe:192.0.2.33",
    "2001:db8::200:5efe:192.0.2.33", "2001:db8::100:5efe:192.0.2.33"])  # fmt: skip
def test_embedded_ipv4_address_is_found(address: str) -> None:
    assert IPv4Address("192.0.2.33") in list(embedded_ipv4_addresses(IPv6Address(address)))


@pytest.mark.parametrize("address", ["::", "::1", "2001:db8::1", "fd00::1", "fe80::1", "64:ff9b:2::1", "64:ff9b:1::"])
def test_other_ipv6_addresses_embed_no_ipv4_address(address: str) -> None:
    assert list(embedded_ipv4_addresses(IPv6Address(address))) == []


def test_surrounding_zeros_are_not_mistaken_for_an_address() -> None:
    found = embedded_ipv4_addresses(IPv6Address("64:ff9b:1::10.0.0.1"))
    assert list(found) == [IPv4Address("10.0.0.1")]


def test_webhooks_reach_only_permitted_private_networks() -> None:
    settings = Settings.model_validate(
        {"desktop": {"task_server": {"webhook_allowed_networks": ["10.1.0.0/16", "100.64.0.0/10"]}}}
    )
    rules = webhook_rules(settings)
    closed = (
        "127.0.0.1", "2130706433", "::1", "::ffff:10.2.3.4", "64:ff9b::a02:304", "10.2.3.4", "172.31.0.1",
        "192.168.0.1", "169.254.1.1", "224.0.0.1", "fe80::1", "fd00::1", "100.100.100.200",
    )  # fmt: skip
    for host in closed:
        assert rules.refusal(host, 443), host
        with pytest.raises(HostRefused):
            rules.resolve_blocking(host, 443)
    for host in ("93.184.216.34", "2606:2800:220:1::1", "10.1.2.3", "100.64.0.1"):
        assert rules.resolve_blocking(host, 443) == [host]
    assert address_rules(settings).refusal("10.2.3.4", 443) is None  # other rules apply to connectors
