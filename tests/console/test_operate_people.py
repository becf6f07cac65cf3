"""Operate: users, groups and API tokens (Contract console 9)."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, expect
from tests.console.conftest import Photographs, accessible, browsing, log_in
from tests.console.results import calls
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

PASSWORD = "seven unrelated words about rivers"


@pytest.fixture
async def client(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with calls(console_server.base_url) as opened:
        yield opened


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


async def new_user(client: httpx.AsyncClient, **fields: object) -> str:
    name = fresh("ana")
    body = {"username": name, "password": PASSWORD, **fields}
    (await client.post("/api/v1/iam/users/new", json=body)).raise_for_status()
    return name


async def operate(page: Page, name: str) -> None:
    await page.get_by_role("link", name="Operate").click()
    await page.get_by_role("navigation", name="Operate").get_by_role("link", name=name).click()


async def search(page: Page, name: str) -> Locator:
    """Search a user; return the row."""
    await page.get_by_label("Search").fill(name)
    rows = page.get_by_role("region", name="Users").get_by_role("row")
    await expect(rows).to_have_count(2)
    return rows.nth(1)


async def act(page: Page, username: str, action: str, confirm: str) -> None:
    await page.get_by_role("button", name=f"Actions of {username}").click()
    await page.get_by_role("menuitem", name=action, exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name=confirm, exact=True).click()


@pytest.mark.console(114)
async def test_created_user_logs_in_until_disabled(
    page: Page, browser: Browser, console_server: ServerProcess, photographs: Photographs
):
    name = fresh("bea")
    await operate(page, "Users")
    await accessible(page)
    await page.get_by_role("button", name="New user").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("User name").fill(name)
    await dialog.get_by_label("Password").fill("short")
    await dialog.get_by_label("First name").fill("Bea")
    await dialog.get_by_label("E-mail").fill("bea@example.org")
    await dialog.get_by_role("button", name="Create the user").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("at least")
    await accessible(page)
    await photographs(page, "operate-new-user")
    await dialog.get_by_label("Password").fill(PASSWORD)
    await dialog.get_by_role("button", name="Create the user").click()
    await expect(dialog).to_be_hidden()
    row = await search(page, name)
    await expect(row).to_contain_text("bea@example.org")
    await photographs(page, "operate-users")
    async with browsing(browser, console_server.base_url) as other:
        opened = await other.new_page()
        await opened.goto("/")
        await log_in(opened, name, PASSWORD)
        await expect(opened.get_by_role("link", name="Operate")).to_be_hidden()
        await act(page, name, "Disable", "Disable")
        await expect(row).to_contain_text("User, disabled")
        await opened.reload()
        await expect(opened.get_by_role("button", name="Log in", exact=True)).to_be_visible()
    await act(page, name, "Enable", "Enable")
    await expect(row).not_to_contain_text("disabled")


@pytest.mark.console(115)
async def test_user_is_changed_and_refusals_are_shown(page: Page, client: httpx.AsyncClient, photographs: Photographs):
    name, group = await new_user(client), fresh("group")
    (await client.post("/api/v1/iam/groups/new", json={"name": group})).raise_for_status()
    await operate(page, "Users")
    row = await search(page, name)
    await page.get_by_role("button", name=f"Edit {name}").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Last name").fill("<b>Öz</b>")
    await dialog.get_by_label(group).check()
    await accessible(page)
    await photographs(page, "operate-edit-user")
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("<b>Öz</b>")
    await expect(row).to_contain_text(group)
    async with calls(str(client.base_url), name, PASSWORD) as own:
        await act(page, name, "Log out and revoke tokens", "Log out and revoke")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        assert (await own.get("/api/v1/iam/preferences")).status_code == 401
    await page.get_by_role("button", name=f"Actions of {name}").click()
    await page.get_by_role("menuitem", name="Set a password").click()
    await dialog.get_by_label("New password").fill("another set of words and 12 numbers")
    await dialog.get_by_role("button", name="Set the password").click()
    await expect(dialog).to_be_hidden()
    async with calls(str(client.base_url), name, "another set of words and 12 numbers"):
        pass
    # The last administrator stays one.
    await search(page, "admin")
    await act(page, "admin", "Disable", "Disable")
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("last active administrator")


@pytest.mark.console(116)
async def test_groups_are_made_changed_and_deleted(page: Page, client: httpx.AsyncClient, photographs: Photographs):
    group = fresh("analysts")
    await operate(page, "Groups")
    await page.get_by_role("button", name="New group").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("a,b")
    await dialog.get_by_label("Download results and files").check()
    await dialog.get_by_role("button", name="Create the group").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("without commas")
    await dialog.get_by_label("Name").fill(group)
    await accessible(page)
    await photographs(page, "operate-new-group")
    await dialog.get_by_role("button", name="Create the group").click()
    row = page.get_by_role("row").filter(has_text=group)
    await expect(row).to_contain_text("download")
    await page.get_by_role("button", name=f"Edit {group}").click()
    await dialog.get_by_label("Import files into tables").check()
    await dialog.get_by_label("Download results and files").uncheck()
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("importer")
    await expect(row).not_to_contain_text("download")
    name = await new_user(client, groups=[group])
    await page.reload()
    await expect(row).to_contain_text("1 user")
    await accessible(page)
    await photographs(page, "operate-groups")
    await row.get_by_role("link", name="1 user").click()
    await expect(page.get_by_role("rowheader")).to_have_text([name])
    await operate(page, "Groups")
    await page.get_by_role("button", name=f"Delete {group}").click()
    await dialog.get_by_role("button", name="Delete", exact=True).click()
    await expect(row).to_be_hidden()
    await expect(page.get_by_role("button", name="Delete default")).to_be_disabled()


@pytest.mark.console(117)
async def test_own_token_is_made_used_and_revoked(
    browser: Browser, client: httpx.AsyncClient, console_server: ServerProcess, photographs: Photographs
):
    name = await new_user(client)
    async with browsing(browser, console_server.base_url) as context:
        page = await context.new_page()
        await page.goto("/")
        await log_in(page, name, PASSWORD)
        await page.get_by_role("button", name="Tokens").click()
        tokens = page.get_by_role("dialog", name="Your API tokens")
        await expect(tokens.get_by_text("There are no API tokens.")).to_be_visible()
        await tokens.get_by_role("button", name="New token").click()
        form = page.get_by_role("dialog", name="New API token")
        await expect(form.get_by_label("Administrate")).to_have_count(0)
        await form.get_by_label("Name").fill("nightly report")
        await form.get_by_label("DuckDB").check()
        await accessible(page)
        await photographs(page, "operate-new-token")
        await form.get_by_role("button", name="Create the token").click()
        shown = page.get_by_role("dialog", name="The new API token")
        value = await shown.get_by_label("Token").input_value()
        await accessible(page)
        await photographs(page, "operate-token-value")
        await shown.get_by_role("button", name="Done").click()
        program = httpx.AsyncClient(base_url=console_server.base_url, headers={"Authorization": f"Bearer {value}"})
        async with program:
            run = {"statement": "SELECT 1", "wait": 30}
            assert (await program.post("/api/v1/editor/execute/duckdb", json=run)).json()["status"] == 0
            assert (await program.post("/api/v1/editor/execute/sqlite", json=run)).json()["status"] != 0
            await expect(tokens.get_by_role("row").filter(has_text="nightly report")).to_contain_text("query:read")
            await accessible(page)
            await photographs(page, "operate-own-tokens")
            await tokens.get_by_role("button", name="Revoke nightly report").click()
            await page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
            await expect(tokens.get_by_role("row").filter(has_text="nightly report")).to_contain_text("Revoked")
            assert (await program.get("/api/v1/iam/preferences")).status_code == 401
        assert value not in await page.content()


@pytest.mark.console(117)
async def test_administrator_makes_and_revokes_tokens_of_others(
    page: Page, client: httpx.AsyncClient, photographs: Photographs
):
    name = await new_user(client)
    await operate(page, "API tokens")
    await page.get_by_label("Tokens of").select_option("One user")
    async with page.expect_response(lambda response: name in response.url):
        await page.get_by_label("User", exact=True).fill(name)
    await page.get_by_text("There are no API tokens.").wait_for()
    await page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("User", exact=True)).to_have_value(name)
    await dialog.get_by_label("Name").fill("for ana")
    await dialog.get_by_label("Administrate").check()
    await dialog.get_by_role("button", name="Create the token").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("only allowed for tokens of administrators")
    await dialog.get_by_label("Administrate").uncheck()
    await dialog.get_by_role("button", name="Create the token").click()
    await dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="for ana")
    await expect(row).to_contain_text("Active")
    await accessible(page)
    await photographs(page, "operate-tokens")
    await page.get_by_role("button", name="Revoke for ana").click()
    await dialog.get_by_role("button", name="Revoke", exact=True).click()
    await expect(row).to_contain_text("Revoked")
