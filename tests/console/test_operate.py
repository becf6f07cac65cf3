"""Operate, the pages for administrators: statements of all users, instances and the doctor (Contract console 9)."""

import re
from collections.abc import AsyncIterator
from itertools import count

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, expect
from tests.console.commands import create_user
from tests.console.conftest import ADMIN, PASSWORD, Photographs, accessible, browsing, log_in
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

SLOW = "SELECT count(*) AS slow_one FROM range(100000000000) AS a, range(100000) AS b"
"""A statement on DuckDB that does not end by itself."""
_numbers = count(1)


async def token_of(http: httpx.AsyncClient, username: str) -> str:
    answer = await http.post("/api/v1/token/auth", data={"username": username, "password": PASSWORD})
    return answer.raise_for_status().json()["access"]


async def submitted(http: httpx.AsyncClient, username: str, statement: str) -> str:
    headers = {"Authorization": f"Bearer {await token_of(http, username)}"}
    answer = await http.post("/api/v1/editor/execute/duckdb", data={"statement": statement}, headers=headers)
    return answer.raise_for_status().json()["history_uuid"]


async def state_of(http: httpx.AsyncClient, username: str, operation: str) -> str:
    headers = {"Authorization": f"Bearer {await token_of(http, username)}"}
    fields = {"operationId": operation}
    answer = await http.post("/api/v1/editor/check_status", data=fields, headers=headers)
    return answer.json()["query_status"]["status"]


@pytest.fixture
async def http(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=console_server.base_url, timeout=60) as client:
        yield client


@pytest.fixture
async def user(console_server: ServerProcess) -> str:
    """The name of a user who is not an administrator."""
    name = f"analyst{next(_numbers)}"
    await create_user(console_server, name, PASSWORD)
    return name


def row_of(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name="Statements").get_by_role("row").filter(has_text=name)


async def open_page(page: Page, name: str) -> None:
    await page.get_by_role("navigation", name="Views").get_by_role("link", name="Operate").click()
    await page.get_by_role("navigation", name="Operate").get_by_role("link", name=name, exact=True).click()
    await page.wait_for_url(f"**/admin/{name.lower()}")


@pytest.mark.console(110)
async def test_statements_of_all_users_are_shown_and_stopped(
    page: Page, http: httpx.AsyncClient, user: str, photographs: Photographs
):
    theirs, own = await submitted(http, user, SLOW), await submitted(http, ADMIN, SLOW.replace("slow_one", "own"))
    await open_page(page, "Statements")
    for name in (user, ADMIN):
        await expect(row_of(page, name)).to_contain_text("Running")
    await accessible(page)
    await photographs(page, "operate-statements")

    await row_of(page, user).get_by_role("button", name=re.compile("^Show ")).click()
    shown = page.get_by_role("dialog")
    await expect(shown.get_by_role("region", name="SQL")).to_have_text(SLOW)
    await accessible(page)
    await photographs(page, "operate-statement")
    await page.keyboard.press("Escape")

    await row_of(page, user).get_by_role("button", name=re.compile("^Stop ")).click()
    await accessible(page)
    await photographs(page, "operate-stop")
    assert await state_of(http, user, theirs) == "running"
    await page.get_by_role("button", name="Stop the statement", exact=True).click()
    await expect(row_of(page, user)).to_have_count(0)
    assert await state_of(http, user, theirs) == "canceled"
    assert await state_of(http, ADMIN, own) == "running"

    await page.get_by_label("State", exact=True).select_option("Canceled")
    await page.get_by_label("User", exact=True).fill(user)
    await expect(row_of(page, user)).to_contain_text("Canceled")
    await expect(row_of(page, user).get_by_role("button", name=re.compile("^Stop "))).to_be_disabled()
    await page.get_by_label("State", exact=True).select_option("Waiting or running")
    await expect(page.get_by_text("No statement matches.")).to_be_visible()
    await page.get_by_label("User", exact=True).fill("")
    await row_of(page, ADMIN).get_by_role("button", name=re.compile("^Stop ")).click()
    await page.get_by_role("button", name="Stop the statement", exact=True).click()
    await expect(page.get_by_text("No statement is waiting or running.")).to_be_visible()
    await photographs(page, "operate-none")


@pytest.mark.console(110)
async def test_users_without_the_right_see_whom_the_pages_are_for(
    browser: Browser, console_server: ServerProcess, user: str, photographs: Photographs
):
    async with browsing(browser, console_server.base_url) as context:
        page = await context.new_page()
        calls: list[str] = []
        page.on("request", lambda request: calls.append(request.url))
        await page.goto("/admin/doctor")
        await log_in(page, user)
        await expect(page.get_by_text("These pages are for administrators.")).to_be_visible()
        views = page.get_by_role("navigation", name="Views")
        await expect(views.get_by_role("link", name="Editor")).to_be_visible()
        await expect(views.get_by_role("link", name="Operate")).to_have_count(0)
        await accessible(page)
        await photographs(page, "operate-refused")
        assert [url for url in calls if "/api/v1/admin/" in url] == []


@pytest.mark.console(111)
async def test_instances_of_the_fleet_are_listed(page: Page, photographs: Photographs):
    await open_page(page, "Instances")
    row = page.get_by_role("region", name="Instances").get_by_role("row").filter(has_text="Server")
    await expect(row).to_contain_text("Alive")
    await accessible(page)
    await photographs(page, "operate-instances")


@pytest.mark.console(112)
async def test_doctor_examines_the_deployment_again_on_request(page: Page, photographs: Photographs):
    await open_page(page, "Doctor")
    database = page.get_by_role("region", name="database")
    await expect(database).to_contain_text("responds in", timeout=60_000)
    await expect(database).to_contain_text("OK")
    await expect(page.get_by_role("region", name="settings")).to_be_visible()
    await accessible(page)
    await photographs(page, "operate-doctor")
    async with page.expect_response("**/api/v1/admin/doctor", timeout=60_000) as received:
        await page.get_by_role("button", name="Run again").click()
    assert (await received.value).status == 200
    await expect(page.get_by_text("Examined by")).to_be_visible()
