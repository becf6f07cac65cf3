"""Tickets with which a browser downloads without a header (Contract platform 3.14)."""

import httpx
import pytest
from tests.api.driving import Api, Caller
from tests.api.test_logs import Event, audited
from tests.api.token.logins import PASSWORD, accounts, log_in
from tests.api.token.test_api_tokens import holder, made

from queryserver.identity.tickets import LIFETIME_S
from queryserver.platform.logs import Redactor

__all__ = ["audited"]  # a fixture


@pytest.fixture
async def ana(tokens: Api) -> Caller:
    """The user ana with an own token."""
    pair = await log_in(tokens)
    return Caller(tokens, "ana", {"Authorization": f"Bearer {pair['access']}"})


async def result(ana: Caller) -> str:
    """Run a statement; return the address of its download."""
    body = await ana.run("duckdb", "SELECT 1 AS one, 'ä' AS text")
    return f"/api/v1/editor/download/{body['history_uuid']}?format=csv"


async def ticketed(caller: Caller, url: str) -> str:
    answer = await caller.post_json("token/download", url=url)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    return answer.json()["url"]


async def opened(api: Api, url: str, method: str = "GET", **headers: str) -> httpx.Response:
    """Open an address as a browser does that follows a link."""
    return await api.http.request(method, url, headers=headers)


@pytest.mark.platform(140)
async def test_ticket_downloads_its_address_without_a_header(ana: Caller):
    url = await ticketed(ana, await result(ana))
    whole = await opened(ana.api, url)
    assert whole.text == "one,text\r\n1,ä\r\n"
    assert "X-Unknown-Fields" not in whole.headers
    assert (await opened(ana.api, url, "HEAD")).status_code == 200
    part = await opened(ana.api, url, Range="bytes=0-2")
    assert (part.status_code, part.text) == (206, "one")


@pytest.mark.platform(140)
async def test_ticket_is_for_one_address(ana: Caller):
    own, other = await result(ana), await result(ana)
    ticket = (await ticketed(ana, own)).partition("ticket=")[2]
    refused = (
        f"{other}&ticket={ticket}",
        f"{own}&guard=true&ticket={ticket}",
        f"{own.replace('csv', 'tsv')}&ticket={ticket}",
        f"{own}&ticket={ticket}&guard=true",
        f"{own}&ticket={ticket}&ticket={ticket}",
        f"{own}&ticket={ticket[:-2]}",
        f"{own}&ticket={ticket[:-1]}{'B' if ticket[-1] != 'B' else 'C'}A",
        f"{own}&ticket=",
        f"{own}&ticket=%E2%82%AC",
    )
    for url in refused:
        answer = await opened(ana.api, url)
        assert (answer.status_code, answer.json()["code"]) == (401, "token_not_valid"), url


@pytest.mark.platform(140)
async def test_ticket_permits_no_other_call(ana: Caller):
    url = await ticketed(ana, await result(ana))
    ticket = url.partition("ticket=")[2]
    assert (await opened(ana.api, url, "POST")).status_code in {401, 405}
    for path in ("iam/users", "editor/get_history", "token/api_tokens", "storage/list", "get_config"):
        for method in ("GET", "POST"):
            answer = await opened(ana.api, f"/api/v1/{path}?ticket={ticket}", method)
            assert answer.status_code in {401, 405}, path
    as_token = await opened(ana.api, "/api/v1/editor/get_history", Authorization=f"Bearer {ticket}")
    assert as_token.status_code == 401
    more = await ana.api.http.post(f"/api/v1/token/download?ticket={ticket}", json={"url": url.partition("&ticket")[0]})
    assert more.status_code == 401


@pytest.mark.platform(140)
async def test_ticket_ends_after_a_minute(ana: Caller, monkeypatch: pytest.MonkeyPatch):
    url = await ticketed(ana, await result(ana))
    tickets = ana.api.services.accounts.tickets
    now = tickets.clock()
    monkeypatch.setattr(tickets, "clock", lambda: now + LIFETIME_S - 5)
    assert (await opened(ana.api, url)).status_code == 200
    monkeypatch.setattr(tickets, "clock", lambda: now + LIFETIME_S + 5)
    assert (await opened(ana.api, url)).status_code == 401


@pytest.mark.platform(141)
@pytest.mark.parametrize("end", ["disable", "password", "revoke", "all"])
async def test_ticket_ends_with_the_login_that_requested_it(tokens: Api, end: str):
    pair = await log_in(tokens)
    ana = Caller(tokens, "ana", {"Authorization": f"Bearer {pair['access']}"})
    url = await ticketed(ana, await result(ana))
    match end:
        case "disable":
            await accounts(tokens).disable("ana")
        case "password":
            await accounts(tokens).set_password("ana", PASSWORD)
        case "revoke":
            await tokens.stranger.post_ok("token/revoke", refresh=pair["refresh"])
        case _:
            await tokens.stranger.post_ok("token/revoke", refresh=pair["refresh"], all="true")
    assert (await opened(tokens, url)).status_code == 401


@pytest.mark.platform(141)
async def test_ticket_has_the_scopes_of_its_api_token(ana: Caller):
    url = await result(ana)
    without = await made(ana, "files:read")
    assert (await opened(ana.api, await ticketed(holder(ana.api, without), url))).status_code == 403
    reading = await made(ana, "query:read")
    ticket = await ticketed(holder(ana.api, reading), url)
    assert (await opened(ana.api, ticket)).status_code == 200
    await ana.post_ok("token/api_tokens/revoke", id=reading["token"]["id"])
    assert (await opened(ana.api, ticket)).status_code == 401


@pytest.mark.platform(142)
@pytest.mark.parametrize(
    "url",
    [
        "",
        "/api/v1/iam/users",
        "/api/v1/editor/download/a/../../iam/users",
        "/api/v1/editor/download/",
        "/api/v1/storage/list?path=%2F",
        "/api/v1/storage/downloads?path=%2F",
        "http://other/api/v1/editor/download/a",
        "//other/api/v1/editor/download/a",
        "/api/v1/editor/download/a#b",
        "/api/v1/editor/download/a?b=c d",
        "/api/v1/editor/download/ä",
        "/api/v1/editor/download/a?ticket=b",
        "/api/v1/editor/download/a?" + "b" * 20_000,
    ],
)
async def test_only_downloads_get_a_ticket(ana: Caller, url: str):
    answer = await ana.post_json("token/download", url=url)
    assert (answer.status_code, answer.json()["code"]) in {(400, "invalid_parameter"), (400, "missing_parameter")}


@pytest.mark.platform(142)
async def test_log_contains_no_ticket(ana: Caller, audited: list[Event]):
    url = await ticketed(ana, await result(ana))
    await opened(ana.api, url)
    ticket = url.partition("ticket=")[2]
    assert audited
    assert ticket not in str(audited)
    assert ticket not in Redactor()(f"GET {url} 200")


async def test_header_takes_precedence_over_a_ticket(ana: Caller):
    url = await ticketed(ana, await result(ana))
    answer = await opened(ana.api, url, Authorization="Bearer wrong")
    assert answer.status_code == 401
