"""Key servers, and `auth explain` (Contract platform 3.9, 4.2, 5.11, 12; T8, T12)."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from tests.api.conftest import make_settings
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, link, log_in, tampered
from tests.engines.certificates import Authority
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer, claims, raw, rsa_key
from tests.fakes.webhdfs import Answer, ReceivedRequest
from tests.unit.cli.test_commands import Command, CommandOutput, command_in
from typer.testing import CliRunner

from queryserver.cli.commands import app
from queryserver.errors.base import ConfigurationError
from queryserver.identity.build import open_explainer
from queryserver.identity.external_keys import KeyServers
from queryserver.identity.model import AuthenticatedUser
from queryserver.platform.addresses import AddressRules
from queryserver.platform.settings.editor import ConnectorPolicySettings


def tls_of(authority: Authority, directory: Path, *names: str) -> ssl.SSLContext:
    certificate, key = authority.certify(*names).write(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def asking(*urls: str, ca: Path | None = None, rules: AddressRules | None = None, timeout_s: float = 30) -> KeyServers:
    return KeyServers(urls, rules=rules or AddressRules(), ca=ca, timeout_s=timeout_s)


async def kids(servers: KeyServers) -> Sequence[str | None] | None:
    try:
        found = await servers.fetch()
        return None if found is None else [key.kid for key in found]
    finally:
        await servers.aclose()


async def nothing(*urls: str, **more: Any) -> None:
    assert await kids(asking(*urls, **more)) is None


async def _hang(_: ReceivedRequest) -> Answer:
    await asyncio.sleep(60)
    return Answer()


async def _drip(_: ReceivedRequest) -> Answer:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b" "
            await asyncio.sleep(0.1)

    return Answer(body=pieces())


def _said(status: int = 200, body: bytes = b"", **headers: str) -> Callable[[ReceivedRequest], Any]:
    async def script(asked: ReceivedRequest) -> Answer:
        if asked.path == "/good":
            return Answer(body=json.dumps(Issuer().document()).encode())
        return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return script


GOOD_BODY = json.dumps(Issuer().document()).encode()

BAD_ANSWERS: dict[str, Callable[[ReceivedRequest], Any]] = {
    "redirect": _said(302, GOOD_BODY, Location="/good"),
    "permanent redirect": _said(308, GOOD_BODY, Location="/good"),
    "500": _said(500, GOOD_BODY),
    "404": _said(404, GOOD_BODY),
    "201": _said(201, GOOD_BODY),
    "no JSON": _said(200, b"<html>"),
    "no keys": _said(200, b'{"jwks": []}'),
    "too long": _said(200, GOOD_BODY[:-1] + b" " * 1024 * 1024 + b"}"),
    "packed": _said(200, GOOD_BODY, Content_Encoding="gzip"),
    "hanging": _hang,
    "dripping": _drip,
}

SLOW = ("hanging", "dripping")


@pytest.mark.platform(42)
@pytest.mark.security("T12")
@pytest.mark.parametrize("reason", BAD_ANSWERS)
async def test_bad_response_leads_to_the_next_key_server(reason: str) -> None:
    bad, good = Issuer(script=BAD_ANSWERS[reason]), Issuer()
    async with bad.serving() as bad_url, good.serving() as good_url:
        timeout_s = 3 if reason in SLOW else 30
        assert await kids(asking(bad_url, good_url, timeout_s=timeout_s)) == ["one"]
        assert [asked.path for server in bad.servers for asked in server.asked] == ["/keys"]


@pytest.mark.platform(42)
@pytest.mark.security("T12")
async def test_certificate_must_match_the_host_and_a_trusted_authority(tmp_path: Path) -> None:
    authority, issuer = Authority(), Issuer()
    ca = tmp_path / "ca.pem"
    ca.write_text(authority.certificate)
    async with issuer.serving(tls_of(authority, tmp_path, "127.0.0.1", "localhost")) as url:
        assert await kids(asking(url, ca=ca)) == ["one"]
        assert await kids(asking(url.replace("127.0.0.1", "localhost"), ca=ca)) == ["one"]
        await nothing(url)
    async with issuer.serving(tls_of(authority, tmp_path, "keys.example")) as url:
        await nothing(url, ca=ca)
    asked = issuer.servers[0].asked
    assert [one.headers["host"].partition(":")[0] for one in asked] == ["127.0.0.1", "localhost"]
    assert issuer.servers[1].asked == []


@pytest.mark.platform(42)
async def test_last_responding_address_is_tried_first() -> None:
    first, second = Issuer(answer=Answer(500)), Issuer()
    async with first.serving() as one, second.serving() as other:
        servers = asking(one, other)
        for _ in range(3):
            await servers.fetch()
        assert (first.fetches, second.fetches) == (1, 3)
        first.answer, second.answer = None, Answer(500)
        await servers.fetch()
        await servers.fetch()
        assert (first.fetches, second.fetches) == (3, 4)
        await servers.aclose()


@pytest.mark.security("T8")
async def test_key_servers_obey_address_rules() -> None:
    issuer = Issuer()
    async with issuer.serving() as url:
        port = issuer.servers[0].port
        await nothing(url, rules=AddressRules(blocked=(ip_network("127.0.0.0/8"),)))
        await nothing(url, rules=AddressRules(own=frozenset({("localhost", port)})))
        assert issuer.fetches == 0
    metadata = AddressRules(blocked=ConnectorPolicySettings().blocked_networks)
    for spelling in ("169.254.169.254", "[::ffff:169.254.169.254]", "2852039166"):
        await nothing(f"https://{spelling}/keys", rules=metadata)


@pytest.mark.security("T8")
@pytest.mark.parametrize("allowed", ["", "0.0.0.0/0", "192.0.2.0/24"])
async def test_http_never_leaves_this_machine(monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    def elsewhere(*_: Any, **__: Any) -> list[Any]:
        return [(None, None, None, "", ("192.0.2.1", 80))]

    monkeypatch.setattr("socket.getaddrinfo", elsewhere)
    with structlog.testing.capture_logs() as lines:
        await nothing("http://localhost/keys", rules=AddressRules(allowed=(ip_network(allowed),) if allowed else ()))
    assert [line["reason"] for line in lines] == ["Connections to localhost are not allowed here."]


@pytest.mark.platform(42)
async def test_missing_keys_return_503_and_own_tokens_still_work(opener: Opener) -> None:
    opened: AbstractAsyncContextManager[Api]
    issuer = Issuer(answer=Answer(500))
    async with issuer.serving() as url:
        opened = opener(jwt={"key_server_url": (url,), "issuer": ISSUER, "audience": AUDIENCE, "timeout_s": 30})
        async with opened as api:
            for answer in (
                await bearer(api, issuer.token()),
                await api.stranger.post("token/verify", token=issuer.token()),
                await api.stranger.post("token/revoke", token=issuer.token()),
            ):
                assert (answer.status_code, answer.json()["code"]) == (503, "key_server_unavailable")
                assert int(answer.headers["retry-after"]) >= 1
            assert (await (await api.user("bob")).get("editor/get_history")).status_code == 200
            issuer.answer = None
            await asyncio.sleep(1.1)
            assert (await bearer(api, issuer.token())).status_code == 200


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
async def url(issuer: Issuer) -> AsyncIterator[str]:
    async with issuer.serving() as served:
        yield served


@pytest.fixture
async def external(opener: Opener, url: str) -> AsyncIterator[Api]:
    async with opener(jwt={"key_server_url": (url,), "issuer": ISSUER, "audience": AUDIENCE, "timeout_s": 60}) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        await link(api, "ana")
        yield api


@pytest.fixture
def explain(tmp_path: Path, database_dsn: str, users_url: str, url: str) -> Command:
    """The command-line program with the settings of a server that uses the key server at this URL."""
    key = make_settings(tmp_path, database_dsn, users_url).desktop.secret_key.get_secret_value()
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__SECRET_KEY=key,
        QUERYSERVER__DESKTOP__AUTH__JWT__KEY_SERVER_URL=url,
        QUERYSERVER__DESKTOP__AUTH__JWT__ISSUER=ISSUER,
        QUERYSERVER__DESKTOP__AUTH__JWT__AUDIENCE=AUDIENCE,
        QUERYSERVER__DESKTOP__AUTH__JWT__TIMEOUT_S="60",
    )


def holds_no_part_of(token: str, ended: CommandOutput) -> bool:
    return not any(part[:20] in ended.out + ended.err for part in token.split(".") if part)


@pytest.mark.platform(56)
async def test_explain_command_names_the_failing_check_and_prints_no_token(external, explain, issuer):
    good, foreign = issuer.token(), issuer.token(iss="https://other.example")
    taken = await explain("auth", "explain", stdin=f"Bearer {good}\n")
    assert (taken.code, taken.out.splitlines()[-1]) == (0, "accepted"), taken
    refused = await explain("auth", "explain", stdin=foreign)
    lines = refused.out.splitlines()
    assert (refused.code, lines[-1]) == (1, "refused")
    assert f"iss        refused: it is 'https://other.example', not {ISSUER}" in lines
    assert "signature  ok" in lines
    assert "aud        -: not checked" in lines
    assert holds_no_part_of(good, taken)
    assert holds_no_part_of(foreign, refused)
    assert [one.username for one in await accounts(external).all()] == ["ana"]


@pytest.mark.platform(56)
async def test_explain_command_covers_own_tokens_and_json_output(external: Api, explain: Command) -> None:
    pair = await log_in(external)
    refused = await explain("auth", "explain", "--json", stdin=pair["refresh"])
    body = json.loads(refused.out)
    assert (refused.code, body["accepted"]) == (1, False)
    assert [check["check"] for check in body["checks"] if check["passed"] is False] == ["user"]
    assert holds_no_part_of(pair["refresh"], refused)


@pytest.mark.parametrize("text", ["", " \n", "two words", "Bearer two words", "x y z"])
def test_input_other_than_a_single_token_is_a_usage_error(text: str) -> None:
    assert CliRunner().invoke(app, ["auth", "explain"], input=text).exit_code == 2


async def failing(api: Api, token: str) -> str | None:
    async with open_explainer(api.services.settings) as explainer:
        found = await explainer.explain(token)
    refusing = [finding.check for finding in found if finding.passed is False]
    assert len(refusing) <= 1
    return refusing[0] if refusing else None


@pytest.mark.platform(56)
async def test_every_check_can_fail(external: Api, issuer: Issuer) -> None:
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
async def test_every_reason_why_an_own_token_ended_is_explained(external: Api) -> None:
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
async def test_unavailable_key_server_is_named(external: Api, issuer: Issuer) -> None:
    issuer.answer = Answer(500)
    assert await failing(external, issuer.token()) == "kid"


@pytest.mark.platform(44)
async def test_incomplete_key_server_configuration_prevents_startup(tmp_path: Path) -> None:
    given = {"KEY_SERVER_URL": "http://keys.example/x,https://keys.example", "ISSUER": "", "AUDIENCE": ""}
    environment = {f"QUERYSERVER__DESKTOP__AUTH__JWT__{name}": value for name, value in given.items()}
    ended = await command_in(tmp_path, **environment)("serve", "--port", "0")
    assert ended.code == 3
    for key, text in (("key_server_url", "must be https"), ("issuer", "is required"), ("audience", "is required")):
        assert f"error desktop.auth.jwt.{key}: {text}" in ended.err


@pytest.mark.platform(47)
async def test_unloadable_plug_in_prevents_startup(tmp_path: Path, database_dsn: str) -> None:
    command = command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__AUTH__API_AUTH="no.such.Class,jwt",
    )
    ended = await command("serve", "--port", "0")
    assert ended.code == 3
    assert "error desktop.auth.api_auth: no.such.Class cannot be loaded: ModuleNotFoundError" in ended.err


async def test_missing_ca_file_prevents_startup(opener: Opener, url: str) -> None:
    jwt = {"key_server_url": (url,), "issuer": ISSUER, "audience": AUDIENCE, "key_server_ca": "/no/such.pem"}
    with pytest.raises(ConfigurationError, match=r"^desktop\.auth\.jwt\.key_server_ca: "):
        await opener(jwt=jwt).__aenter__()
