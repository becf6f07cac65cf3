"""The settings report, warnings about settings, and sources of secrets."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from queryserver.platform.settings.loader import (
    SettingsResult,
    as_toml,
    load_settings,
    masked_value,
    read_settings,
    sample_file,
)
from queryserver.platform.settings.sections import SECRET_OPTIONS, Section, keys
from queryserver.platform.settings.tree import Settings, exposure, warnings

SECRETS = """
[desktop]
secret_key = "Zr8#planted-secret-key-of-32-letters"
secret_key_fallbacks = ["Zr8#planted-former-key-of-32-letters"]
[desktop.database]
url = "postgresql://u:planted-url@h/d"
[desktop.task_server]
broker_url = "redis://:planted-broker@h"
result_file_storage = '{"backend": "s3", "properties": {"location": "s3a://b", "secret_access_key": "planted-s3"}}'
[notebook.interpreters.a]
interface = "sqlalchemy"
options = {url = "mysql://u:planted-option@h/d", auth_password = "planted-password", path = "shown"}
[aws.aws_accounts.default]
secret_access_key = "planted-aws"
"""


@pytest.mark.platform(49)
@pytest.mark.security("T9")
def test_report_is_toml_with_origins_and_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(SECRETS)
    text = as_toml(load_settings(file, {}))
    assert "planted" not in text
    values = tomllib.loads(text)
    assert values["desktop"]["secret_key"] == values["desktop"]["database"]["url"] == "********"
    assert values["notebook"]["interpreters"]["a"]["options"] == {
        "url": "********",
        "auth_password": "********",
        "path": "shown",
    }
    assert values["desktop"]["smtp"]["password"] == ""
    assert "http_port = 8888  # default" in text
    assert 'interface = "sqlalchemy"  # file' in text


@pytest.mark.platform(49)
@pytest.mark.security("T9")
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://u:pl@nted@rm:8088/ws", "http://u:********@rm:8088/ws"),
        ("http://rm:8088/ws?user=u&api_token=planted&x=1", "http://rm:8088/ws?user=u&api_token=********&x=1"),
        ("http://rm:8088/a@b", "http://rm:8088/a@b"),
    ],
)
def test_report_masks_passwords_and_tokens_in_urls(tmp_path: Path, address: str, shown: str) -> None:
    """The name of the key does not mark the URL as secret, so only the secret parts of the URL are masked."""
    file = tmp_path / "q.toml"
    file.write_text(f'[hadoop.yarn_clusters.a]\nresourcemanager_api_url = "{address}"\n')
    settings = load_settings(file, {})
    key = "resourcemanager_api_url"
    assert tomllib.loads(as_toml(settings))["hadoop"]["yarn_clusters"]["a"][key] == shown
    assert masked_value(settings, f"hadoop.yarn_clusters.a.{key}") == shown


def test_sample_file_changes_nothing_and_states_every_default(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(sample_file())
    defaults = load_settings(file, {})
    assert "# file" not in as_toml(defaults)
    file.write_text("\n".join(_uncommented(sample_file())))
    assert load_settings(file, {}).model_dump() == defaults.model_dump()


def _uncommented(text: str) -> list[str]:
    """Remove the comment markers; return the keys and table headers, except tables whose entries have user-defined
    names.
    """
    lines, kept = [], True
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        if bare.startswith("["):
            kept = "NAME" not in bare
        if kept and line.startswith("# ") and (bare.startswith("[") or " = " in bare) and not bare.endswith("."):
            lines.append(bare)
    return lines


def test_suspicious_settings_are_warned_about(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(
        "[notebook]\ninterpreters_shown_on_wheel = 'nope'\n[desktop]\ntrusted_proxies = '0.0.0.0/0'\n"
        "[desktop.auth.jwt]\nkey_server_url = 'https://k'\nissuer = '*'\naudience = 'a'"
    )
    assert [key for key, _ in warnings(load_settings(file, {}))] == [
        "notebook.interpreters_shown_on_wheel",
        "desktop.auth.jwt.issuer",
        "desktop.trusted_proxies",
    ]


@pytest.mark.parametrize(("desktop", "warned"),
    [("", False), ("max_connections = 1000", True), ("max_connections_per_address = 100", True),
    ("max_connections_per_address = 100\ntrusted_proxies = '10.0.0.1'", False)])  # fmt: skip
def test_unsuitable_per_address_connection_limit_is_warned_about(tmp_path: Path, desktop: str, warned: bool) -> None:
    file = tmp_path / "q.toml"
    file.write_text(f"[desktop]\n{desktop}\n")
    keys = [key for key, _ in warnings(load_settings(file, {}))]
    assert ("desktop.max_connections_per_address" in keys) is warned


_DATABASE = {"url": "postgresql://u:p@db.example/queryserver"}
_HOSTS, _METRICS = "desktop.allowed_hosts", "desktop.metrics.allowed_networks"


def warned_of(**desktop: Any) -> set[str]:
    """Return the keys for which there are warnings."""
    return {key for key, _ in exposure(Settings.model_validate({"desktop": desktop}))}


def test_local_trial_has_no_warnings() -> None:
    assert warned_of() == set()
    assert warned_of(database={**_DATABASE, "embedded": True}) == set()


@pytest.mark.parametrize("http_host", ["0.0.0.0", "::", "10.0.0.5"])
def test_unrestricted_hosts_are_warned_about_beyond_loopback(http_host: str) -> None:
    assert warned_of(http_host=http_host) == {_HOSTS}
    assert warned_of(http_host=http_host, allowed_hosts=("sql.example",)) == set()


@pytest.mark.parametrize("sign",
    [{"database": _DATABASE}, {"trusted_proxies": ("10.0.0.1",)}, {"url_prefix": "/sql"},
    {"http_host": "::1", "database": _DATABASE}, {"http_host": "::1", "trusted_proxies": ("127.0.0.1",)},
    {"http_host": "127.0.0.1", "trusted_proxies": ("::1",)},
    {"http_host": "localhost", "trusted_proxies": ("127.0.0.1",)}],
)  # fmt: skip
def test_metrics_exposed_by_local_proxy_are_warned_about(sign: dict[str, Any]) -> None:
    assert warned_of(**sign) == {_HOSTS, _METRICS}
    assert warned_of(**sign, allowed_hosts=("sql.example",)) == {_METRICS}


@pytest.mark.parametrize("mended",
    [{"metrics": {"allowed_networks": ()}}, {"metrics": {"allowed_networks": ("10.2.0.0/16",)}},
    {"metrics": {"enable_prometheus": False}}, {"trusted_proxies": ("127.0.0.0/8", "::1")},
    {"trusted_proxies": ("127.0.0.1",)}, {"trusted_proxies": ("127.0.0.1",), "http_host": "127.0.0.1"},
    {"trusted_proxies": ("::1",), "http_host": "::1"},
    {"trusted_proxies": ("127.0.0.1", "::1"), "http_host": "localhost"},
    {"http_host": "10.0.0.5"}])  # fmt: skip
def test_metrics_not_exposed_by_proxy_are_not_warned_about(mended: dict[str, Any]) -> None:
    assert warned_of(database=_DATABASE, allowed_hosts=("sql.example",), **mended) == set()


def test_external_allowed_host_implies_remote_clients() -> None:
    assert warned_of(allowed_hosts=("sql.example",)) == {_METRICS}
    assert warned_of(allowed_hosts=("localhost", "127.0.0.1")) == set()


# Other keys that the entries of these tables require.
_NEEDED = {"notebook.interpreters": {"interface": "sqlite"}, "desktop.connectors": {"dialect": "x", "interface": "y"}}
# Valid values of these keys. All other secrets accept any string.
_GOOD = {
    "desktop.secret_key": "Zr8#a-secret-key-of-more-than-32-letters",
    "desktop.secret_key_fallbacks": "Zr8#a-former-key-of-more-than-32-letters",
    "desktop.task_server.webhook_secret": "Zr8#planted-webhook-key-of-32-letters",
    "desktop.database.url": "postgresql://u:planted@h/d",
    "desktop.task_server.broker_url": "redis://:planted@h",
    "tracing.otlp_headers": "Authorization=planted",
    "desktop.task_server.result_file_storage": '{"backend": "local", "properties": {"location": "/r"}}',
}


def secrets(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each secret, with `one` as the name of each table entry."""
    for name, key in keys(section).items():
        if key.section:
            yield from secrets(key.section, (*path, name))
        elif key.entries:
            yield from secrets(key.entries, (*path, name, "one"))
        elif key.has_free_names:
            yield from ((*path, name, option) for option in sorted(SECRET_OPTIONS) if name != "extra_url_options")
        elif key.is_secret:
            yield (*path, name)


ALL = [".".join(path) for path in secrets(Settings)]


def found(settings: Settings, path: list[str]) -> Any:
    """Return the unmasked value at a path."""
    value: Any = settings
    for name in path:
        value = getattr(value, keys(type(value))[name].attribute) if isinstance(value, Section) else value[name]
    if isinstance(value, tuple):
        [value] = value
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def nested(path: list[str], value: Any) -> dict[str, Any]:
    """Return a settings tree that contains the value and the other keys that its table entries require."""
    tree: dict[str, Any] = {}
    table = tree
    for place, name in enumerate(path[:-1]):
        table = table.setdefault(name, {})
        table.update(_NEEDED.get(".".join(path[:place]), {}) if place else {})
    table[path[-1]] = value
    return tree


def test_secrets_exist_at_every_settings_level() -> None:
    assert {"desktop.secret_key", "aws.aws_accounts.one.secret_access_key", "beeswax.auth_password"} <= set(ALL)
    assert "notebook.interpreters.one.options.url" in ALL


@pytest.mark.platform(50)
@pytest.mark.parametrize("kind", ["file", "script"])
@pytest.mark.parametrize("source", ["toml", "environment"])
def test_every_secret_may_come_from_file_or_script(tmp_path: Path, kind: str, source: str) -> None:
    for name in ALL:
        reading, value = _read(tmp_path, name, kind, source)
        assert [problem for problem in reading.problems if problem.startswith(name)] == []
        read = found(reading.settings, name.split("."))
        assert (read.location if isinstance(read, Section) else read) == value, name


def _read(directory: Path, name: str, kind: str, source: str) -> tuple[SettingsResult, str]:
    """Read settings whose secret `name` comes from a source of this kind; return the result and the expected value."""
    value = _GOOD.get(name, "planted")
    secret = directory / "secret"
    secret.write_text(f"{value}\n")
    where = str(secret) if kind == "file" else f"cat {secret}"
    *tables, last = name.split(".")
    path = [*tables, f"{last}_{kind}"]
    config = directory / "queryserver.toml"
    config.write_text(_toml(nested(path, where if source == "toml" else None)))
    environ = {f"QUERYSERVER__{'__'.join(path)}".upper(): where} if source == "environment" else {}
    return read_settings(config, environ), "/r" if name.endswith("result_file_storage") else value


def _toml(tree: dict[str, Any], prefix: str = "") -> str:
    plain = [f'{name} = "{value}"' for name, value in tree.items() if isinstance(value, str)]
    lines = [f"[{prefix}]", *plain] if prefix and plain else []
    for name, value in tree.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{prefix}.{name}" if prefix else name))
    return "\n".join(line for line in lines if line)
