"""Logging in to the console and out of it, in a real browser (Contract console 4.1)."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect
from tests.console.conftest import ADMIN, PASSWORD, Photographs, accessible, browsing, log_in
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE
from tests.fakes.provider import CLIENT, Provider
from tests.timing import until

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

VIEWS = "Views"


@pytest.fixture(scope="module")
async def provider() -> AsyncIterator[Provider]:
    made = Provider(secret="")
    async with made.serving():
        yield made


@pytest.fixture(scope="module")
async def server(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server at which users log in with a password, or at the provider."""
    auth = {
        "JWT__KEY_SERVER_URL": f"{provider.issuer}/keys",
        "JWT__ISSUER": provider.issuer,
        "JWT__AUDIENCE": "queryserver",
        "OIDC__CLIENT_ID": CLIENT,
        "OIDC__NAME": "Example login",
    }
    settings = {f"QUERYSERVER__DESKTOP__AUTH__{name}": value for name, value in auth.items()}
    settings["QUERYSERVER_ADMIN_PASSWORD"] = PASSWORD
    async with running_server(tmp_path_factory.mktemp("login") / "data", settings=settings) as process:
        yield process


@pytest.fixture
async def profile(browser: Browser, server: ServerProcess) -> AsyncIterator[BrowserContext]:
    """A new browser profile."""
    async with browsing(browser, server.base_url) as opened:
        yield opened


@pytest.fixture
async def visitor(profile: BrowserContext) -> Page:
    """A page whose user has not logged in."""
    page = await profile.new_page()
    await page.goto("/files")
    await page.get_by_label("User name").wait_for()
    return page


async def is_inside(page: Page) -> None:
    await page.get_by_role("navigation", name=VIEWS).wait_for()


async def is_outside(page: Page) -> None:
    await page.get_by_label("User name").wait_for()


@pytest.mark.console(10)
async def test_remembered_login_survives_a_reload_and_opens_other_tabs(profile: BrowserContext, visitor: Page) -> None:
    await log_in(visitor)
    await visitor.reload()
    await is_inside(visitor)
    assert await visitor.evaluate("document.cookie") == ""
    stored = await visitor.evaluate("JSON.stringify({ ...localStorage, ...sessionStorage })")
    assert "eyJ" not in stored
    other = await profile.new_page()
    await other.goto("/history")
    await is_inside(other)
    (cookie,) = await profile.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    assert re.fullmatch(r"queryserver_session_\d+", cookie.get("name", ""))


@pytest.mark.console(10)
async def test_login_that_is_not_remembered_ends_with_the_page(profile: BrowserContext, visitor: Page) -> None:
    await visitor.get_by_label("Stay logged in").uncheck()
    await log_in(visitor)
    assert await profile.cookies() == []
    await visitor.reload()
    await is_outside(visitor)


@pytest.mark.console(10)
async def test_api_token_logs_in_until_the_page_is_left(profile: BrowserContext, visitor: Page) -> None:
    access = (await api_login(profile))["access"]
    made = await profile.request.post(
        "/api/v1/token/api_tokens/new",
        headers={"Authorization": f"Bearer {access}"},
        data={"name": "console", "scopes": ["query", "files:read"]},
    )
    await visitor.get_by_role("button", name="Use an API token").click()
    await visitor.get_by_label("API token").fill((await made.json())["value"])
    await visitor.get_by_role("button", name="Log in", exact=True).click()
    await is_inside(visitor)
    assert await profile.cookies() == []
    await visitor.reload()
    await is_outside(visitor)


async def api_login(profile: BrowserContext) -> dict[str, str]:
    fields = {"username": ADMIN, "password": PASSWORD}
    return await (await profile.request.post("/api/v1/token/auth", data=fields)).json()


@pytest.mark.console(11)
async def test_logout_in_one_tab_logs_out_all_tabs(profile: BrowserContext, visitor: Page) -> None:
    sent: list[str] = []
    visitor.on("request", lambda request: sent.append(request.headers.get("authorization", "")))
    await log_in(visitor)
    other = await profile.new_page()
    await other.goto("/files")
    await is_inside(other)
    await other.get_by_role("button", name="Log out").click()
    await asyncio.gather(is_outside(other), is_outside(visitor))
    await until(lambda: has_no_cookies(profile))
    bearer = next(one for one in reversed(sent) if one)
    await expect_refused(profile, bearer)
    await visitor.reload()
    await is_outside(visitor)
    # A login in one tab logs in the tab that waits for one.
    await log_in(other)
    await is_inside(visitor)


async def has_no_cookies(profile: BrowserContext) -> bool:
    return await profile.cookies() == []


async def expect_refused(profile: BrowserContext, bearer: str) -> None:
    response = await profile.request.get("/api/v1/editor/get_history", headers={"Authorization": bearer})
    assert response.status == 401


@pytest.mark.console(11)
async def test_session_that_ended_on_the_server_asks_for_a_login_once(profile: BrowserContext, visitor: Page) -> None:
    await log_in(visitor)
    # A call of the view that is still under way would end the session before the link is opened.
    await visitor.wait_for_load_state("networkidle")
    access = (await api_login(profile))["access"]
    ended = await profile.request.post("/api/v1/token/revoke", data={"token": access, "all": True})
    assert ended.ok
    await visitor.get_by_role("link", name="History").click()
    await is_outside(visitor)
    await expect(visitor.get_by_text("Your session has ended. Log in again.")).to_be_visible()
    await log_in(visitor)
    await expect(visitor).to_have_url(re.compile("/history$"))


@pytest.mark.console(12)
async def test_login_at_the_issuer_returns_to_the_address_from_which_it_began(
    profile: BrowserContext, visitor: Page
) -> None:
    await visitor.goto("/files?path=a")
    await visitor.get_by_role("button", name="Log in with Example login").click()
    await is_inside(visitor)
    await expect(visitor).to_have_url(re.compile(r"/files\?path=a$"))
    (cookie,) = await profile.cookies()
    assert cookie.get("name", "").startswith("queryserver_session")
    await visitor.reload()
    await is_inside(visitor)
    await visitor.go_back()
    assert "code=" not in visitor.url


@pytest.mark.console(12)
@pytest.mark.security("T17")
async def test_next_leads_only_to_this_console(visitor: Page) -> None:
    await visitor.goto("/login?next=//evil.example/files")
    await log_in(visitor)
    await expect(visitor).to_have_url(re.compile(r"^http://127\.0\.0\.1:\d+/editor$"))
    await visitor.goto("/login?next=/history")
    await expect(visitor).to_have_url(re.compile("/history$"))


@pytest.mark.console(13)
async def test_failed_logins_are_one_sentence(visitor: Page, provider: Provider, photographs: Photographs) -> None:
    await visitor.get_by_label("User name").fill("unknown-user")
    await visitor.get_by_label("Password").fill("wrong")
    await visitor.get_by_role("button", name="Log in", exact=True).click()
    await expect(visitor.get_by_role("alert")).to_have_text("The user name or password is wrong.")
    await accessible(visitor)
    await photographs(visitor, "login-wrong")
    provider.denies = True
    try:
        await visitor.get_by_role("button", name="Log in with Example login").click()
        await expect(visitor.get_by_role("alert")).to_have_text("The login was denied or canceled at the issuer.")
    finally:
        provider.denies = False
    await accessible(visitor)
    await photographs(visitor, "login-denied")
    await visitor.get_by_role("link", name="Back to the login").click()
    await is_outside(visitor)


async def test_login_works_with_the_keyboard_and_for_screen_readers(visitor: Page, photographs: Photographs) -> None:
    for scheme in ("light", "dark"):
        await visitor.emulate_media(color_scheme=scheme)
        await accessible(visitor)
    await photographs(visitor, "login")
    await visitor.get_by_role("button", name="Use an API token").click()
    await expect(visitor.get_by_label("API token")).to_be_focused()
    await accessible(visitor)
    await photographs(visitor, "login-token")
    await visitor.get_by_role("button", name="Other ways to log in").click()
    await expect(visitor.get_by_label("User name")).to_be_focused()
    await visitor.keyboard.type(ADMIN)
    await visitor.keyboard.press("Tab")
    await visitor.keyboard.type(PASSWORD)
    await visitor.keyboard.press("Enter")
    await is_inside(visitor)
