"""Logins at the external issuer with a browser (Contract platform 3.12)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from structlog.testing import capture_logs
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, ProviderOpener, accounts, bearer, link
from tests.api.token.pages import OWN_PAGE, Page, open_page, set_cookie
from tests.fakes.provider import CLIENT, SECRET, Provider
from tests.fakes.webhdfs import Answer

from queryserver.identity.model import AuthenticatedUser, jwt_issuer

LOGIN_COOKIE = "queryserver_login"


@pytest.fixture
async def api(provider_opener: ProviderOpener) -> AsyncIterator[Api]:
    async with provider_opener() as opened:
        yield opened


@pytest.fixture
async def page(api: Api) -> AsyncIterator[Page]:
    async with open_page(api) as opened:
        yield opened


async def begin(page: Page) -> str:
    response = await page.post("oidc/begin")
    assert response.status_code == 200, response.text
    assert list(response.json()) == ["status", "url"]
    return response.json()["url"]


async def names(api: Api) -> list[str]:
    return [account.username for account in await accounts(api).all()]


def refusal(response: httpx.Response) -> tuple[int, str]:
    assert "set-cookie" not in response.headers
    return response.status_code, response.json()["code"]


INVALID_STATE = (400, "login_state_invalid")
REFUSED = (401, "issuer_login_refused")


@pytest.mark.platform(135)
async def test_options_name_the_issuer(api: Api, provider_opener: ProviderOpener) -> None:
    options = (await api.stranger.get("token/options")).json()
    assert options == {"status": 0, "password": True, "issuer": {"name": "127.0.0.1"}, "device": True}
    async with provider_opener(name="Example login", device_login=False) as other:
        options = (await other.stranger.get("token/options")).json()
        assert (options["issuer"], options["device"]) == ({"name": "Example login"}, False)


@pytest.mark.platform(135)
async def test_without_a_client_there_is_no_login_at_the_issuer(tokens: Api) -> None:
    async with open_page(tokens) as page:
        for path, fields in [("oidc/begin", {}), ("oidc/finish", {"code": "a", "state": "b"})]:
            refused = await page.post(path, **fields)
            assert (refused.status_code, refused.json()["code"]) == (501, "issuer_not_configured")


@pytest.mark.platform(135)
@pytest.mark.security("T18")
async def test_login_begins_with_state_nonce_and_challenge_of_its_own(page: Page, provider: Provider) -> None:
    response = await page.post("oidc/begin")
    cookie = set_cookie(response, LOGIN_COOKIE)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/api/v1/token/oidc")
    assert (cookie["max-age"], cookie["secure"]) == ("600", "")
    url = response.json()["url"]
    requested = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert url.startswith(f"{provider.issuer}/authorize?")
    assert requested["scope"] == "openid profile email"
    assert requested["redirect_uri"] == "http://test/login/callback"
    again = parse_qs(urlsplit(await begin(page)).query)
    for name in ("state", "nonce", "code_challenge"):
        assert len(requested[name]) == 43
        assert again[name] != [requested[name]]
        assert requested[name] not in cookie.value


@pytest.mark.platform(135)
async def test_login_makes_a_session_of_the_user(api: Api, page: Page, provider: Provider) -> None:
    back = provider.approve(await begin(page))
    response = await page.post("oidc/finish", **back)
    assert list(response.json()) == ["status", "access", "expires_in"]
    assert (await bearer(api, response.json()["access"])).status_code == 200
    assert set_cookie(response)["path"] == "/api/v1/token/session"
    assert set_cookie(response, LOGIN_COOKIE)["max-age"] == "0"
    assert page.http.cookies.get(LOGIN_COOKIE) is None
    renewed = await page.post("session/refresh")
    assert (await bearer(api, renewed.json()["access"])).status_code == 200
    assert (await page.post("session/end")).status_code == 200
    assert (await bearer(api, renewed.json()["access"])).status_code == 401
    assert await names(api) == ["ana"]


@pytest.mark.platform(135)
async def test_login_that_is_not_remembered_sets_no_session_cookie(api: Api, page: Page, provider: Provider) -> None:
    response = await page.post("oidc/finish", **provider.approve(await begin(page)), remember=False)
    assert page.cookie is None
    assert list(response.json()) == ["status", "access", "expires_in", "refresh"]
    assert (await api.stranger.post("token/refresh", refresh=response.json()["refresh"])).status_code == 200


@pytest.mark.platform(135)
async def test_any_instance_completes_a_login(provider_opener: ProviderOpener, provider: Provider) -> None:
    async with provider_opener() as one, provider_opener() as other, open_page(one) as page, open_page(other) as later:
        url = await begin(page)
        later.http.cookies = page.http.cookies
        assert (await later.post("oidc/finish", **provider.approve(url))).status_code == 200


@pytest.mark.platform(136)
async def test_login_is_completed_once_and_only_by_the_browser_that_began_it(
    api: Api, page: Page, provider: Provider
) -> None:
    back = provider.approve(await begin(page))
    sealed = page.http.cookies[LOGIN_COOKIE]
    async with open_page(api) as foreign:
        assert refusal(await foreign.post("oidc/finish", **back)) == INVALID_STATE
        other = provider.approve(await begin(foreign), "mallory")
        assert refusal(await page.post("oidc/finish", **other)) == INVALID_STATE
        assert refusal(await foreign.post("oidc/finish", **back)) == INVALID_STATE
    assert (await page.post("oidc/finish", **back)).status_code == 200
    again = {**page.headers, "Cookie": f"{LOGIN_COOKIE}={sealed}"}
    provider.codes[back["code"]] = provider.codes.get(back["code"], provider.codes[other["code"]])
    assert refusal(await page.post("oidc/finish", headers=again, **back)) == INVALID_STATE
    assert len([one for one in provider.requests if one.path.endswith("/token")]) == 1


@pytest.mark.platform(136)
async def test_parallel_completions_of_a_login_give_one_session(page: Page, provider: Provider) -> None:
    back = provider.approve(await begin(page))
    sent = {**page.headers, "Cookie": f"{LOGIN_COOKIE}={page.http.cookies[LOGIN_COOKIE]}"}
    answers = await asyncio.gather(*(page.post("oidc/finish", headers=sent, **back) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400, 400, 400]


@pytest.mark.platform(136)
async def test_altered_expired_and_foreign_states_are_refused(
    api: Api, page: Page, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = provider.approve(await begin(page))
    sealed = page.http.cookies[LOGIN_COOKIE]
    begun = (await api.stranger.post("token/device/begin")).json()["device"]
    for cookie in ("", "x", "%C3", sealed[:-8], f"{sealed[:40]}AAAA{sealed[44:]}", "A" * 9000, begun):
        headers = {**OWN_PAGE, "Cookie": f"{LOGIN_COOKIE}={cookie}"}
        assert refusal(await page.post("oidc/finish", headers=headers, **back)) == INVALID_STATE
    for changes in ({"state": ""}, {"state": "x"}, {"iss": "https://evil.example"}, {"iss": None}):
        response = await page.post("oidc/finish", **{**back, **changes})
        assert response.status_code == 400, changes
    logins = api.services.accounts.issuer_logins
    assert logins is not None
    now = logins.clock()
    with monkeypatch.context() as changed:
        changed.setattr(logins, "clock", lambda: now + 601)
        assert refusal(await page.post("oidc/finish", **back)) == INVALID_STATE
    assert (await page.post("oidc/finish", **back)).status_code == 200


BAD_TOKENS: list[dict[str, Any]] = [
    {"nonce": "another"},
    {"nonce": None},
    {"nonce": 5},
    {"aud": "another client"},
    {"aud": "another audience"},
    {"aud": None},
    {"azp": "another client"},
    {"iss": "https://evil.example"},
    {"exp": 1},
    {"exp": None},
    {"sub": None},
    {"sub": "Not A Name"},
]


@pytest.mark.platform(136)
@pytest.mark.security("T12")
async def test_id_tokens_that_are_not_of_this_login_are_refused(
    api: Api, page: Page, provider: Provider, subtests: pytest.Subtests
) -> None:
    for claims in BAD_TOKENS:
        with subtests.test(claims=claims):
            refused = await page.post("oidc/finish", **provider.approve(await begin(page), **claims))
            assert refusal(refused) == REFUSED
            assert page.cookie is None
    both = provider.approve(await begin(page), aud=[CLIENT, "other"], azp=CLIENT)
    assert (await page.post("oidc/finish", **both)).status_code == 200
    assert await names(api) == ["ana"]


@pytest.mark.platform(136)
async def test_an_id_token_is_no_bearer_token(api: Api, page: Page, provider: Provider) -> None:
    await page.post("oidc/finish", **provider.approve(await begin(page)))
    token = provider.signer.token(iss=provider.issuer, aud=CLIENT)
    assert (await bearer(api, token)).status_code == 401


@pytest.mark.platform(137)
async def test_identity_rules_decide_which_user_it_is(api: Api, page: Page, provider: Provider) -> None:
    await accounts(api).create(AuthenticatedUser("local"), PASSWORD)
    refused = await page.post("oidc/finish", **provider.approve(await begin(page), "local"))
    assert refusal(refused) == REFUSED
    await link(api, "local", "1234", jwt_issuer(provider.issuer))
    accepted = await page.post("oidc/finish", **provider.approve(await begin(page), "1234"))
    assert accepted.status_code == 200
    await accounts(api).disable("local")
    refused = await page.post("oidc/finish", **provider.approve(await begin(page), "1234"))
    assert refusal(refused) == (401, "user_inactive")


@pytest.mark.platform(137)
async def test_unknown_users_are_refused_if_none_may_be_created(
    provider: Provider, provider_opener: ProviderOpener
) -> None:
    async with provider_opener(jwt={"create_users": False}) as api, open_page(api) as page:
        refused = await page.post("oidc/finish", **provider.approve(await begin(page)))
        assert refusal(refused) == REFUSED
        assert await names(api) == []


@pytest.mark.platform(138)
@pytest.mark.parametrize("methods", [None, ["client_secret_post"], ["client_secret_basic"]])
async def test_client_authenticates_as_the_issuer_supports(
    page: Page, provider: Provider, methods: list[str] | None
) -> None:
    provider.document["token_endpoint_auth_methods_supported"] = methods or ["client_secret_basic"]
    if methods is None:
        del provider.document["token_endpoint_auth_methods_supported"]
    response = await page.post("oidc/finish", **provider.approve(await begin(page)))
    assert response.status_code == 200
    sent = provider.requests[-2 if provider.requests[-1].path.endswith("/keys") else -1]
    assert ("authorization" in sent.headers) == (methods != ["client_secret_post"])


@pytest.mark.platform(138)
async def test_public_client_sends_no_secret(provider_opener: ProviderOpener, provider: Provider) -> None:
    provider.secret = ""
    async with provider_opener() as api, open_page(api) as page:
        assert (await page.post("oidc/finish", **provider.approve(await begin(page)))).status_code == 200
    assert not [one for one in provider.requests if "authorization" in one.headers]


@pytest.mark.platform(138)
async def test_refused_codes_and_broken_responses_have_stable_codes(
    page: Page, provider: Provider, subtests: pytest.Subtests
) -> None:
    unavailable = (503, "issuer_unavailable")
    for answer, expected in [
        (Answer(400, b'{"error": "invalid_grant"}'), REFUSED),
        (Answer(401, b'{"error": "invalid_client"}'), REFUSED),
        (Answer(400, b"<html>"), unavailable),
        (Answer(500, b'{"error": "server_error"}'), unavailable),
        (Answer(302, b"", {"Location": "https://evil.example"}), unavailable),
        (Answer(200, b"[]"), unavailable),
        (Answer(200, b"{}"), REFUSED),
        (Answer(200, b'{"id_token": 5}'), REFUSED),
        (Answer(200, b'{"id_token": "a.b.c"}'), REFUSED),
        (Answer(200, b" " * (1024 * 1024 + 1)), unavailable),
    ]:
        with subtests.test(status=answer.status, body=str(answer.body)[:40]):
            back = provider.approve(await begin(page))
            provider.broken["/token"] = answer
            with capture_logs() as lines:
                assert refusal(await page.post("oidc/finish", **back)) == expected
            assert SECRET not in str(lines)
            assert back["code"] not in str(lines)


@pytest.mark.platform(138)
async def test_discovery_documents_of_others_are_not_used(
    provider_opener: ProviderOpener, provider: Provider, subtests: pytest.Subtests
) -> None:
    good = provider.document.copy()
    for changes in (
        {"issuer": "https://evil.example"},
        {"issuer": provider.issuer + "/"},
        {"token_endpoint": "http://evil.example/token"},
        {"token_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": 5},
    ):
        provider.document = {**good, **changes}
        with subtests.test(changes=changes):
            async with provider_opener() as api, open_page(api) as page:
                refused = await page.post("oidc/begin")
                assert refusal(refused) == (503, "issuer_unavailable")


@pytest.mark.platform(138)
async def test_logins_go_on_while_the_discovery_document_cannot_be_fetched(
    api: Api, page: Page, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(page)
    logins = api.services.accounts.issuer_logins
    assert logins is not None
    now = logins.provider.clock()
    provider.broken["/.well-known/openid-configuration"] = Answer(500)
    monkeypatch.setattr(logins.provider, "clock", lambda: now + 4000)
    assert (await page.post("oidc/finish", **provider.approve(await begin(page)))).status_code == 200


@pytest.mark.platform(135)
async def test_redirect_address_follows_prefix_proxy_and_setting(provider_opener: ProviderOpener) -> None:
    async with provider_opener({"url_prefix": "/sql"}) as api, open_page(api, "https://sql.example.com") as page:
        begun = await page.http.post("/sql/api/v1/token/oidc/begin", headers=page.headers)
        requested = parse_qs(urlsplit(begun.json()["url"]).query)
        assert requested["redirect_uri"] == ["https://sql.example.com/sql/login/callback"]
        assert set_cookie(begun, LOGIN_COOKIE)["path"] == "/sql/api/v1/token/oidc"
        assert set_cookie(begun, LOGIN_COOKIE)["secure"]
    public = "https://data.example.com/login/callback"
    async with provider_opener(redirect_url=public) as api, open_page(api) as page:
        assert parse_qs(urlsplit(await begin(page)).query)["redirect_uri"] == [public]


@pytest.mark.platform(131)
@pytest.mark.security("T18")
async def test_foreign_pages_cannot_begin_or_finish_logins(page: Page) -> None:
    for path in ("oidc/begin", "oidc/finish"):
        for headers, code in [
            ({}, "csrf_header_missing"),
            ({**OWN_PAGE, "Origin": "https://evil.example"}, "origin_not_allowed"),
        ]:
            refused = await page.post(path, headers=headers, code="a", state="b")
            assert refusal(refused) == (403, code)
