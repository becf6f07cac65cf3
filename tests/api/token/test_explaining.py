"""`auth explain`, and what stops the start (Contract platform 12, 3.9, 4.2)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, Opener, accounts, link, log_in, tampered
from tests.cases import each
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer, claims, raw, rsa_key
from tests.fakes.webhdfs import Answer
from tests.unit.cli.test_commands import Command, Ended, command_in
from typer.testing import CliRunner

from queryserver.cli.commands import app
from queryserver.errors.base import ConfigurationError
from queryserver.identity.build import open_explainer


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
async def url(issuer: Issuer) -> AsyncIterator[str]:
    async with issuer.serving() as served:
        yield served


@pytest.fixture
async def external(opener: Opener, url: str) -> AsyncIterator[Api]:
    async with opener(jwt={"key_server_url": (url,), "issuer": ISSUER, "audience": AUDIENCE}) as api:
        await accounts(api).create("ana", PASSWORD)
        await link(api, "ana")
        yield api


@pytest.fixture
def explain(tmp_path: Path, database_dsn: str, users_url: str, url: str) -> Command:
    """The command beside that server, with its settings."""
    key = make_settings(tmp_path, database_dsn, users_url).desktop.secret_key.get_secret_value()
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__SECRET_KEY=key,
        QUERYSERVER__DESKTOP__AUTH__JWT__KEY_SERVER_URL=url,
        QUERYSERVER__DESKTOP__AUTH__JWT__ISSUER=ISSUER,
        QUERYSERVER__DESKTOP__AUTH__JWT__AUDIENCE=AUDIENCE,
    )


def holds_no_part_of(token: str, ended: Ended) -> bool:
    return not any(part[:20] in ended.out + ended.err for part in token.split(".") if part)


@pytest.mark.platform(56)
async def test_the_command_names_the_failing_check_and_prints_no_token(
    external: Api, explain: Command, issuer: Issuer
) -> None:
    good, foreign = issuer.token(), issuer.token(iss="https://other.example")
    taken = await explain("auth", "explain", stdin=f"Bearer {good}\n")
    assert (taken.code, taken.out.splitlines()[-1]) == (0, "accepted"), taken
    refused = await explain("auth", "explain", stdin=foreign)
    lines = refused.out.splitlines()
    assert (refused.code, lines[-1]) == (1, "refused")
    assert f"iss        refused: it is 'https://other.example', not {ISSUER}" in lines
    assert "signature  ok" in lines
    assert "aud        -: not looked at" in lines
    assert holds_no_part_of(good, taken)
    assert holds_no_part_of(foreign, refused)
    assert [one.username for one in await accounts(external).all()] == ["ana"]


@pytest.mark.platform(56)
async def test_the_command_explains_own_tokens_as_json_too(external: Api, explain: Command) -> None:
    pair = await log_in(external)
    refused = await explain("auth", "explain", "--json", stdin=pair["refresh"])
    body = json.loads(refused.out)
    assert (refused.code, body["accepted"]) == (1, False)
    assert [check["check"] for check in body["checks"] if check["passed"] is False] == ["user"]
    assert holds_no_part_of(pair["refresh"], refused)


@each("text", ["", " \n", "two words", "Bearer two words", "x y z"])
def test_what_is_not_one_token_is_wrong_usage(text: str) -> None:
    assert CliRunner().invoke(app, ["auth", "explain"], input=text).exit_code == 2


async def failing(api: Api, token: str) -> str | None:
    async with open_explainer(api.services.settings) as explainer:
        found = await explainer.explain(token)
    refusing = [finding.check for finding in found if finding.passed is False]
    assert len(refusing) <= 1
    return refusing[0] if refusing else None


@pytest.mark.platform(56)
async def test_every_check_can_be_the_failing_one(external: Api, issuer: Issuer) -> None:
    token = issuer.token()
    body, signature = token.split(".")[1:]
    expected = {
        token: None,
        "opaque": "form",
        f"e30.{body}.{signature}": "form",
        issuer.token(header={"crit": ["b64"]}): "form",
        raw({"alg": "none"}, claims()): "alg",
        raw({"alg": "RS512", "kid": "one"}, claims(), signature): "alg",
        issuer.token("two", key=rsa_key("mine")): "kid",
        issuer.token("one", key=rsa_key("mine")): "signature",
        issuer.token(exp=1): "times",
        issuer.token(nbf=9_999_999_999): "times",
        issuer.token(iss=None): "iss",
        issuer.token(aud="other"): "aud",
        issuer.token(sub=None): "user",
        issuer.token(sub="a b"): "user",
        issuer.token(sub="ANA"): "user",
    }
    assert {one: await failing(external, one) for one in expected} == expected
    await external.stranger.post("token/revoke", token=token)
    assert await failing(external, token) == "user"


@pytest.mark.platform(56)
async def test_every_end_of_an_own_token_is_explained(external: Api) -> None:
    pair, other = await log_in(external), await log_in(external)
    access = pair["access"]
    assert await failing(external, access) is None
    assert await failing(external, tampered(access)) == "signature"
    assert await failing(external, raw({"alg": "HS256", "kid": "00000000"}, {}, "x")) == "kid"
    await external.stranger.post("token/revoke", token=access)
    assert await failing(external, access) == "user"
    await accounts(external).set_password("ana", PASSWORD + "2")
    assert await failing(external, other["access"]) == "user"


@pytest.mark.platform(56)
async def test_a_key_server_that_is_down_is_named(external: Api, issuer: Issuer) -> None:
    issuer.answer = Answer(500)
    assert await failing(external, issuer.token()) == "kid"


@pytest.mark.platform(44)
async def test_a_half_configured_key_server_stops_the_start(tmp_path: Path) -> None:
    given = {"KEY_SERVER_URL": "http://keys.example/x,https://keys.example", "ISSUER": "", "AUDIENCE": ""}
    environment = {f"QUERYSERVER__DESKTOP__AUTH__JWT__{name}": value for name, value in given.items()}
    ended = await command_in(tmp_path, **environment)("serve", "--port", "0")
    assert ended.code == 3
    for key, text in (("key_server_url", "must be https"), ("issuer", "must be given"), ("audience", "must be given")):
        assert f"error desktop.auth.jwt.{key}: {text}" in ended.err


@pytest.mark.platform(47)
async def test_a_plug_in_that_cannot_be_loaded_stops_the_server(tmp_path: Path, database_dsn: str) -> None:
    command = command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__AUTH__API_AUTH="no.such.Class,jwt",
    )
    ended = await command("serve", "--port", "0")
    assert ended.code == 3
    assert "error desktop.auth.api_auth: no.such.Class cannot be loaded: ModuleNotFoundError" in ended.err


async def test_a_missing_file_of_authorities_stops_the_start(opener: Opener, url: str) -> None:
    jwt = {"key_server_url": (url,), "issuer": ISSUER, "audience": AUDIENCE, "key_server_ca": "/no/such.pem"}
    with pytest.raises(ConfigurationError, match=r"^desktop\.auth\.jwt\.key_server_ca: "):
        await opener(jwt=jwt).__aenter__()
