"""`config check` warns of what is open to more callers than it seems."""

from typing import Any

from tests.cases import each

from queryserver.platform.settings.tree import Settings, exposure

_DATABASE = {"url": "postgresql://u:p@db.example/queryserver"}
_HOSTS, _METRICS = "desktop.allowed_hosts", "desktop.metrics.allowed_networks"


def found(**desktop: Any) -> set[str]:
    """The keys that are warned of."""
    return {key for key, _ in exposure(Settings.model_validate({"desktop": desktop}))}


def test_a_trial_on_this_machine_has_nothing_to_say() -> None:
    assert found() == set()
    assert found(database={**_DATABASE, "embedded": True}) == set()


@each("http_host", "0.0.0.0", "::", "10.0.0.5")
def test_any_host_is_warned_of_where_other_machines_call(http_host: str) -> None:
    assert found(http_host=http_host) == {_HOSTS}
    assert found(http_host=http_host, allowed_hosts=("sql.example",)) == set()


@each(
    "sign",
    {"database": _DATABASE},
    {"trusted_proxies": ("10.0.0.1",)},
    {"url_prefix": "/sql"},
    {"http_host": "::1", "database": _DATABASE},
)
def test_a_proxy_on_this_machine_opens_the_metrics(sign: dict[str, Any]) -> None:
    assert found(**sign) == {_HOSTS, _METRICS}
    assert found(**sign, allowed_hosts=("sql.example",)) == {_METRICS}


@each(
    "mended",
    {"metrics": {"allowed_networks": ()}},
    {"metrics": {"allowed_networks": ("10.2.0.0/16",)}},
    {"metrics": {"enable_prometheus": False}},
    {"trusted_proxies": ("127.0.0.0/8", "::1")},
    {"http_host": "10.0.0.5"},
)
def test_metrics_that_a_proxy_does_not_open_are_not_warned_of(mended: dict[str, Any]) -> None:
    assert found(database=_DATABASE, allowed_hosts=("sql.example",), **mended) == set()


def test_a_name_that_clients_call_shows_that_other_machines_do() -> None:
    assert found(allowed_hosts=("sql.example",)) == {_METRICS}
    assert found(allowed_hosts=("localhost", "127.0.0.1")) == set()
