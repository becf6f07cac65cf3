"""The settings as text: what is in force, a file to begin with, the page of the documentation."""

import tomllib
from pathlib import Path

import pytest
from scripts.document_settings import TARGET, document
from tests.cases import each

from queryserver.platform.settings.loading import as_toml, load_settings, sample_file, shown_value
from queryserver.platform.settings.tree import warnings

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
def test_the_report_is_toml_with_origins_and_without_secrets(tmp_path: Path) -> None:
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
@each(
    ("address", "shown"),
    ("http://u:pl@nted@rm:8088/ws", "http://u:********@rm:8088/ws"),
    ("http://rm:8088/ws?user=u&api_token=planted&x=1", "http://rm:8088/ws?user=u&api_token=********&x=1"),
    ("http://rm:8088/a@b", "http://rm:8088/a@b"),
)
def test_passwords_and_tokens_in_addresses_are_not_shown(tmp_path: Path, address: str, shown: str) -> None:
    """These addresses are no secrets by their names, so that they are shown but for what is secret in them."""
    file = tmp_path / "q.toml"
    file.write_text(f'[hadoop.yarn_clusters.a]\nresourcemanager_api_url = "{address}"\n')
    settings = load_settings(file, {})
    key = "resourcemanager_api_url"
    assert tomllib.loads(as_toml(settings))["hadoop"]["yarn_clusters"]["a"][key] == shown
    assert shown_value(settings, f"hadoop.yarn_clusters.a.{key}") == shown


def test_the_sample_file_changes_nothing_and_names_every_default(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(sample_file())
    defaults = load_settings(file, {})
    assert "# file" not in as_toml(defaults)
    file.write_text("\n".join(_uncommented(sample_file())))
    assert load_settings(file, {}).model_dump() == defaults.model_dump()


def _uncommented(text: str) -> list[str]:
    """Keys and heads of tables, without the tables whose entries have names of their own."""
    lines, kept = [], True
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        if bare.startswith("["):
            kept = "NAME" not in bare
        if kept and line.startswith("# ") and (bare.startswith("[") or " = " in bare) and not bare.endswith("."):
            lines.append(bare)
    return lines


def test_the_page_of_settings_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == document()


def test_what_looks_like_a_mistake_is_a_warning(tmp_path: Path) -> None:
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


@each(
    ("desktop", "warned"),
    ("", False),
    ("max_connections = 1000", True),
    ("max_connections_per_address = 100", True),
    ("max_connections_per_address = 100\ntrusted_proxies = '10.0.0.1'", False),
)
def test_bounds_of_one_address_that_may_hit_everybody_are_a_warning(tmp_path: Path, desktop: str, warned: bool) -> None:
    file = tmp_path / "q.toml"
    file.write_text(f"[desktop]\n{desktop}\n")
    keys = [key for key, _ in warnings(load_settings(file, {}))]
    assert ("desktop.max_connections_per_address" in keys) is warned
