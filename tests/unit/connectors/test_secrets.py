"""Secrets in connector settings: masking, and the value that means "unchanged" (Contract platform 5.1)."""

import pytest
from tests.refusals import raises_code

from queryserver.connectors.model import MASK
from queryserver.connectors.secrets import is_secret, masked, secrets_of, with_stored_secrets, without_secrets

pytestmark = [pytest.mark.security("T9"), pytest.mark.platform(70)]


@pytest.mark.parametrize("name",
    ["password", "Password", "ssl_key_passphrase", "client_secret", "auth-token", "PRIVATE_KEY", "credentials_json",
    "aws_access_key_id", "apiKey", "api_key", "pass%77ord"])  # fmt: skip
def test_secret_names_are_recognized_in_every_spelling(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["username", "url", "server_host", "ssl_ca", "kerberos_host", "path"])
def test_other_names_are_not_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://svc:s3cret@db:3306/shop", "mysql://svc:********@db:3306/shop"),
        ("mysql://svc@db/shop", "mysql://svc@db/shop"),
        ("mysql://svc:@db/shop", "mysql://svc:@db/shop"),
        ("mysql://:s3cret@db/shop", "mysql://:********@db/shop"),
        ("mysql://svc:s3:cr@et@db/shop", "mysql://svc:********@db/shop"),
        ("mysql://svc:s3/cret@db/shop", "mysql://svc:********@db/shop"),
        ("mysql://svc:s3?cret@db/shop", "mysql://svc:********@db/shop"),
        ("trino://h/c?source=x&API_KEY=s3cret&y=1", "trino://h/c?source=x&API_KEY=********&y=1"),
        ("trino://h/c?pass%77ord=s3cret", "trino://h/c?pass%77ord=********"),
        ("x://h/c?dir=s3://b/?token=s3cret", "x://h/c?dir=s3://b/?token=********"),
        ("jdbc:db2://h:50000/DB:user=u;password=s3cret;x=1;", "jdbc:db2://h:50000/DB:user=u;password=********;x=1;"),
        ("jdbc:oracle:thin:scott/s3cret@h:1521", "jdbc:oracle:thin:scott/********@h:1521"),
        ("svc:s3cret@h:50051", "svc:********@h:50051"),
        ("x://${USER}:${PASSWORD}@h/d", "x://${USER}:${PASSWORD}@h/d"),
        ("http://h:8080/a@b", "http://h:8080/a@b"),
    ],
)
def test_only_the_password_of_a_url_is_masked(url: str, shown: str) -> None:
    assert masked({"url": url}) == {"url": shown}
    assert "s3" not in str(without_secrets({"url": url})["url"]).replace("s3://", "")
    assert with_stored_secrets({"url": shown}, {"url": url}) == {"url": url}


def test_secret_values_are_masked_unless_empty() -> None:
    settings = {"password": "s3cret", "credentials_json": "", "username": "svc", "server_port": 1, "ssl_validate": True}
    assert masked(settings) == {**settings, "password": MASK}
    assert secrets_of(settings) == {"password": "s3cret"}


def test_masked_secret_means_unchanged() -> None:
    stored = {"url": "mysql://svc:s3cret@db/shop", "password": "other"}
    sent = {"url": "mysql://svc:********@db/elsewhere", "password": MASK}
    assert with_stored_secrets(sent, stored) == {"url": "mysql://svc:s3cret@db/elsewhere", "password": "other"}
    assert with_stored_secrets({**stored, "password": "new"}, stored)["password"] == "new"


def test_masked_secret_without_a_stored_value_is_rejected() -> None:
    for stored in ({}, {"password": ""}):
        with raises_code("secret_required") as refused:
            with_stored_secrets({"password": MASK}, stored)
        assert list(refused.value.errors) == ["password"]
    with raises_code("secret_required"):
        with_stored_secrets({"url": "mysql://svc:********@db/shop"}, {"url": "mysql://svc@db/shop"})


@pytest.mark.parametrize("changed",
    ["mysql://svc:********@other:3306/shop", "mysql://svc:********@db:3307/shop", "mysql://svc:********@db/shop",
    "mysql://root:********@db:3306/shop", "postgresql://svc:********@db:3306/shop",
    "mysql+pymysql://svc:********@db:3306/shop", "mysql://svc:%2A%2A%2A%2A%2A%2A%2A%2A@other:3306/shop"])  # fmt: skip
def test_stored_secret_is_never_sent_to_another_server_or_user(changed: str) -> None:
    with raises_code("secret_required") as refused:
        with_stored_secrets({"url": changed}, {"url": "mysql://svc:s3cret@db:3306/shop"})
    assert "s3cret" not in refused.value.message + str(refused.value.errors)


@pytest.mark.parametrize(
    "change", [{"server_host": "other"}, {"server_port": 10001}, {"username": "root"}, {"url": "https://other"}]
)
def test_changing_a_destination_setting_requires_the_secret_again(change: dict[str, str | int]) -> None:
    stored = {
        "server_host": "h",
        "server_port": 10000,
        "username": "svc",
        "url": "http://h",
        "password": "s3cret",
        "database": "a",
    }
    kept = {**stored, "password": MASK, "database": "b"}
    assert with_stored_secrets(kept, stored)["password"] == "s3cret"
    with raises_code("secret_required"):
        with_stored_secrets({**kept, **change}, stored)
    assert with_stored_secrets({**kept, **change, "password": "again"}, stored)["password"] == "again"


def test_host_case_change_keeps_the_target() -> None:
    stored = {"url": "mysql://svc:s3cret@DB/shop"}
    assert with_stored_secrets({"url": "mysql://svc:********@db/shop"}, stored)["url"] == "mysql://svc:s3cret@db/shop"


@pytest.mark.security("T30")
@pytest.mark.parametrize(
    "rest", ["a" * 30_000 + "=" * 30_000, "a=" * 30_000, "password=" * 7_000, "=" * 60_000, "a" * 60_000 + "password=x"]
)
def test_adversarial_url_is_masked_in_linear_time(rest: str) -> None:
    """Masking examines each character once; backtracking would take minutes for a few thousand characters."""
    shown = str(masked({"url": f"mysql://h/?{rest}"})["url"])
    assert shown.startswith("mysql://h/?")
    assert ("password" in rest) == (MASK in shown)
