"""Sessions of web pages with a refresh token in a cookie (Contract platform 3.11)."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_network

import httpx
import pytest
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, log_in, not_valid
from tests.api.token.pages import COOKIE, OWN_PAGE, Page, open_page, set_cookie

from queryserver.errors.base import DatabaseUnavailable
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import AuthenticatedUser

ANA = {"username": "ana", "password": PASSWORD}
CALLS = ("session", "session/refresh", "session/end")
NOT_PROVIDED = {"detail": "Authentication credentials were not provided."}


@pytest.fixture
async def page(tokens: Api) -> AsyncIterator[Page]:
    async with open_page(tokens) as opened:
        yield opened


async def access_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["access"]


@pytest.mark.platform(130)
async def test_options_list_the_password_login(tokens: Api) -> None:
    options = (await tokens.stranger.get("token/options")).json()
    assert options == {"status": 0, "password": True, "issuer": None, "device": False}


async def test_options_have_no_password_login_if_own_tokens_are_not_accepted(opener: Opener) -> None:
    async with opener(api_auth=("api_token",)) as api:
        assert not (await api.stranger.get("token/options")).json()["password"]


@pytest.mark.platform(130)
@pytest.mark.security("T18")
async def test_login_sets_the_refresh_token_in_a_cookie_only(tokens: Api, page: Page) -> None:
    response = await page.post("session", **ANA)
    assert list(response.json()) == ["status", "access", "expires_in"]
    assert response.json()["expires_in"] == 86400
    cookie = set_cookie(response)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/api/v1/token/session")
    assert (cookie["max-age"], cookie["secure"], cookie["domain"]) == ("604800", "", "")
    assert (await bearer(tokens, response.json()["access"])).status_code == 200
    assert (await tokens.stranger.post("token/refresh", refresh=cookie.value)).status_code == 200


@pytest.mark.platform(130)
async def test_cookie_is_sent_to_no_other_call(page: Page) -> None:
    await page.post("session", **ANA)
    for path, sent in [
        ("/api/v1/token/session/refresh", True),
        ("/api/v1/token/refresh", False),
        ("/api/v1/token/sessions", False),
        ("/api/v1/editor/get_history", False),
        ("/", False),
    ]:
        assert ("cookie" in page.http.build_request("POST", path).headers) == sent, path


@pytest.mark.platform(130)
async def test_servers_at_ports_of_one_host_have_cookies_of_their_own(tokens: Api) -> None:
    async with open_page(tokens, "http://test:8889") as page:
        own = set_cookie(await page.post("session", **ANA), f"{COOKIE}_8889").value
        assert (await page.post("session/refresh")).status_code == 200
    async with open_page(tokens, "http://test:8890") as page:
        sent = {**page.headers, "Cookie": f"{COOKIE}_8889={own}"}
        assert (await page.post("session/refresh", headers=sent)).json() == NOT_PROVIDED
        await page.post("session/end", headers=sent)
        assert (await tokens.stranger.post("token/refresh", refresh=own)).status_code == 200


@pytest.mark.platform(130)
async def test_cookie_path_includes_the_url_prefix(opener: Opener) -> None:
    async with opener({"url_prefix": "/sql/"}) as api, open_page(api) as page:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        login = await page.http.post("/sql/api/v1/token/session", json=ANA, headers=page.headers)
        assert set_cookie(login)["path"] == "/sql/api/v1/token/session"
        renewed = await page.http.post("/sql/api/v1/token/session/refresh", headers=page.headers)
        assert (await api.http.get("/sql/api/v1/editor/get_history")).status_code == 401
        assert renewed.status_code == 200


HTTP, HTTPS = "http://sql.example.com", "https://sql.example.com"
CLIENT, PROXY = "192.0.2.9", "10.0.0.1"
REACHED = [
    (HTTPS, CLIENT, {}, True),
    (HTTP, CLIENT, {}, False),
    (HTTP, PROXY, {"X-Forwarded-Proto": "https", "Origin": HTTPS}, True),
    # A program behind the proxy sends no origin.
    (HTTP, PROXY, {"X-Forwarded-Proto": "https", "Origin": ""}, True),
    # The proxy ends TLS, but is not listed as trusted.
    (HTTP, CLIENT, {"Origin": HTTPS}, True),
    (HTTP, CLIENT, {"X-Forwarded-Proto": "https"}, False),
]
"""URL of the server, address of the peer, headers, and whether the browser uses https."""


@pytest.mark.platform(130)
@pytest.mark.security("T18")
async def test_cookie_is_secure_if_the_browser_uses_https(opener: Opener, subtests: pytest.Subtests) -> None:
    async with opener({"trusted_proxies": (ip_network("10.0.0.0/8"),)}) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        for url, peer, headers, is_secure in REACHED:
            sent = {name: value for name, value in {**OWN_PAGE, "Origin": url, **headers}.items() if value}
            with subtests.test(url=url, peer=peer, headers=headers):
                async with open_page(api, url, peer=peer) as page:
                    answers = [await page.post("session", headers=sent, **ANA)]
                    answers.append(await page.post("session/end", headers=sent))
                assert [answer.status_code for answer in answers] == [200, 200]
                assert [bool(set_cookie(answer)["secure"]) for answer in answers] == [is_secure, is_secure]


@pytest.mark.platform(131)
@pytest.mark.security("T18")
async def test_calls_without_the_header_are_refused_and_change_nothing(page: Page) -> None:
    await page.post("session", **ANA)
    for headers in ({}, {"X-Requested-With": "XMLHttpRequest"}, {"Origin": "http://test"}):
        for path in CALLS:
            refused = await page.post(path, headers=headers, **ANA)
            assert (refused.status_code, refused.json()["code"]) == (403, "csrf_header_missing")
            assert "set-cookie" not in refused.headers
    assert (await page.post("session/refresh")).status_code == 200


FOREIGN = [
    "https://evil.example",
    "http://test.evil.example",
    "http://test:8080",
    "http://test@evil.example",
    "http://eviltest",
    "null",
    "",
    "file://",
    "http://test:x",
    "http://[test",
]


@pytest.mark.platform(131)
@pytest.mark.security("T18")
async def test_calls_of_foreign_pages_are_refused_and_change_nothing(page: Page, subtests: pytest.Subtests) -> None:
    await page.post("session", **ANA)
    for origin in FOREIGN:
        for path in CALLS:
            with subtests.test(origin=origin, path=path):
                refused = await page.post(path, headers={**OWN_PAGE, "Origin": origin}, **ANA)
                assert (refused.status_code, refused.json()["code"]) == (403, "origin_not_allowed")
                assert "set-cookie" not in refused.headers
    assert (await page.post("session/refresh")).status_code == 200


@pytest.mark.platform(131)
async def test_an_origin_that_cors_allows_has_no_session(opener: Opener) -> None:
    allowed = {"cors_enabled": True, "cors_allowed_origins": ("https://bi.example.com",)}
    async with opener(allowed) as api, open_page(api) as page:
        headers = {**OWN_PAGE, "Origin": "https://bi.example.com"}
        refused = await page.http.post("/api/v1/token/session", headers=headers, json=ANA)
        assert (refused.status_code, refused.json()["code"]) == (403, "origin_not_allowed")


@pytest.mark.platform(131)
async def test_page_of_http_is_refused_if_the_server_is_reached_by_https(tokens: Api) -> None:
    async with open_page(tokens, "https://test", Origin="http://test") as page:
        assert (await page.post("session", **ANA)).json()["code"] == "origin_not_allowed"


@pytest.mark.platform(131)
async def test_pages_of_the_same_origin_may_log_in(page: Page, subtests: pytest.Subtests) -> None:
    for host, origin in [
        ("test:80", "http://test"),
        ("test", "http://test:80"),
        ("TEST", "http://test"),
        ("test:8888", "http://test:8888"),
        ("[::1]:8888", "http://[::1]:8888"),
    ]:
        with subtests.test(host=host, origin=origin):
            headers = {**OWN_PAGE, "Host": host, "Origin": origin}
            assert (await page.post("session", headers=headers, **ANA)).status_code == 200


@pytest.mark.platform(131)
async def test_header_and_origin_are_checked_before_the_body(page: Page) -> None:
    for headers in ({}, {**OWN_PAGE, "Origin": "null"}):
        sent = {**headers, "Content-Type": "text/plain"}
        assert (await page.http.post("/api/v1/token/session", content=b"{", headers=sent)).status_code == 403
    sent = {**OWN_PAGE, "Content-Type": "text/plain"}
    for path in CALLS:
        assert (await page.http.post(f"/api/v1/token/{path}", content=b"{", headers=sent)).status_code == 415


@pytest.mark.platform(132)
async def test_refresh_returns_an_access_token_for_the_cookie(tokens: Api, page: Page) -> None:
    await page.post("session", **ANA)
    renewed = await page.post("session/refresh")
    assert list(renewed.json()) == ["status", "access", "expires_in"]
    assert "set-cookie" not in renewed.headers
    assert (await bearer(tokens, renewed.json()["access"])).status_code == 200


@pytest.mark.platform(132)
async def test_refresh_takes_only_one_refresh_token_from_the_cookie(tokens: Api, page: Page) -> None:
    pair = await log_in(tokens)
    own, access = pair["refresh"], pair["access"]
    missing = ["", f"{COOKIE}=", f"other={own}", f"{COOKIE}={own}; {COOKIE}={access}"]
    for cookie in missing:
        refused = await page.post("session/refresh", headers={**OWN_PAGE, "Cookie": cookie})
        assert (refused.status_code, refused.json()) == (401, NOT_PROVIDED)
    bearer_only = {**OWN_PAGE, "Authorization": f"Bearer {own}"}
    assert (await page.post("session/refresh", headers=bearer_only)).json() == NOT_PROVIDED
    assert (await page.post("session/refresh", refresh=own)).json() == NOT_PROVIDED
    wrong_type = await page.post("session/refresh", headers={**OWN_PAGE, "Cookie": f"{COOKIE}={access}"})
    assert wrong_type.json() == not_valid("Token has wrong type", "refresh", "Token has wrong type")
    twice = {**OWN_PAGE, "Cookie": f"a=b; {COOKIE}={own}; {COOKIE}={own}"}
    assert (await page.post("session/refresh", headers=twice)).status_code == 200


@pytest.mark.platform(132)
async def test_refresh_ends_with_the_rights_of_the_user(tokens: Api, page: Page) -> None:
    await page.post("session", **ANA)
    await accounts(tokens).disable("ana")
    assert (await page.post("session/refresh")).json() == {"detail": "User is inactive", "code": "user_inactive"}
    await accounts(tokens).enable("ana")
    assert (await page.post("session/refresh")).status_code == 401
    await page.post("session", **ANA)
    await accounts(tokens).set_password("ana", "another password")
    refused = await page.post("session/refresh")
    assert refused.json() == not_valid(kind="refresh", detail="Token is invalid or expired")
    assert "set-cookie" not in refused.headers


@pytest.mark.platform(132)
@pytest.mark.security("T14")
@pytest.mark.parametrize("rotates", [False, True])
async def test_two_tabs_that_refresh_at_the_same_time_both_go_on(opener: Opener, rotates: bool) -> None:
    async with opener(rotate_refresh_tokens=rotates) as api, open_page(api) as page:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        await page.post("session", **ANA)
        sent = {**page.headers, "Cookie": f"{COOKIE}={page.cookie}"}
        answers = await asyncio.gather(*(page.post("session/refresh", headers=sent) for _ in range(4)))
        for answer in answers:
            assert (await bearer(api, await access_of(answer))).status_code == 200
        cookies = [set_cookie(answer).value for answer in answers] if rotates else [page.cookie]
        for cookie in cookies:
            later = await page.post("session/refresh", headers={**page.headers, "Cookie": f"{COOKIE}={cookie}"})
            assert (await bearer(api, await access_of(later))).status_code == 200


@pytest.mark.platform(133)
async def test_end_revokes_the_tokens_of_cookie_and_bearer(tokens: Api, page: Page) -> None:
    access = await access_of(await page.post("session", **ANA))
    cookie, other = page.cookie, await log_in(tokens)
    third = await log_in(tokens)
    ended = await page.post("session/end", headers={**page.headers, "Authorization": f"Bearer {other['access']}"})
    assert ended.json() == {"status": 0}
    assert (set_cookie(ended).value, set_cookie(ended)["max-age"]) == ("", "0")
    assert page.cookie is None
    for token in (access, other["access"]):
        assert (await bearer(tokens, token)).status_code == 401
    assert (await page.post("session/refresh", headers={**OWN_PAGE, "Cookie": f"{COOKIE}={cookie}"})).status_code == 401
    assert (await tokens.stranger.post("token/refresh", refresh=other["refresh"])).status_code == 401
    assert (await bearer(tokens, third["access"])).status_code == 200
    for headers in (page.headers, {**page.headers, "Authorization": "Bearer a b"}):
        assert (await page.post("session/end", headers=headers)).status_code == 200


@pytest.mark.platform(133)
async def test_end_deletes_the_cookie_if_its_token_cannot_be_revoked(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(records: CallerRepository, key: object) -> None:
        raise DatabaseUnavailable

    await page.post("session", **ANA)
    with monkeypatch.context() as changed:
        changed.setattr(CallerRepository, "owner", unavailable)
        ended = await page.post("session/end")
    assert (ended.status_code, ended.json()["code"]) == (503, "database_unavailable")
    assert page.cookie is None


@pytest.mark.platform(134)
@pytest.mark.security("T15")
async def test_logins_of_pages_are_throttled_together_with_others(tokens: Api, page: Page) -> None:
    for _ in range(2):
        refused = await page.post("session", username="ana", password="wrong password")
        plain = await tokens.stranger.post("token/auth", username="ana", password="wrong password")
        assert (refused.status_code, refused.json()) == (plain.status_code, plain.json())
        assert "set-cookie" not in refused.headers
    await page.post("session", username="ana", password="wrong password")
    throttled = await page.post("session", **ANA)
    assert (throttled.status_code, throttled.json()["code"]) == (429, "login_throttled")
    assert "set-cookie" not in throttled.headers


async def test_invalid_fields_are_named(page: Page) -> None:
    refused = await page.post("session", username="ana")
    assert (refused.status_code, refused.json()) == (400, {"password": ["This field is required."]})
