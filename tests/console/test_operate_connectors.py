"""Connectors in the pages for administrators: forms made from options, tests, changes (Contract console 9)."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect
from tests.console.conftest import PASSWORD, Photographs, accessible, log_in
from tests.console.results import calls
from tests.e2e.harness import PROGRAM, ServerProcess
from tests.engines.chromium import ENGINE
from tests.ports import free_port

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

LIST = "/admin/connectors"


async def connectors_of(client: httpx.AsyncClient) -> dict[str, dict[str, object]]:
    """Return the stored connectors by name, with their settings by name."""
    groups = (await client.get("/api/v1/connector/instances")).raise_for_status().json()["connectors"]
    found = [one for group in groups for one in group["values"]]
    return {one["nice_name"]: {**{it["name"]: it["value"] for it in one["settings"]}, **one} for one in found}


@pytest.fixture
async def client(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Calls of the administrator. The connectors of the test are deleted at its end."""
    async with calls(console_server.base_url) as opened:
        yield opened
        for one in (await connectors_of(opened)).values():
            await opened.post("/api/v1/connector/instance/delete", json={"connector": {"id": one["id"]}})


async def create(client: httpx.AsyncClient, name: str, dialect: str, interface: str, **settings: object) -> str:
    connector = {"nice_name": name, "dialect": dialect, "interface": interface}
    connector["settings"] = [{"name": one, "value": value} for one, value in settings.items()]
    answer = await client.post("/api/v1/connector/instance/update", json={"connector": connector})
    return answer.raise_for_status().json()["connector"]["id"]


async def choose_type(page: Page, text: str, name: str) -> Locator:
    """Open the form of a new connector through the list of types; return the form."""
    await page.goto(LIST)
    await page.get_by_role("button", name="New connector").click()
    await page.get_by_label("Search for a type").fill(text)
    await page.get_by_role("list", name="Types that this server runs").get_by_role("link", name=name).first.click()
    form = page.get_by_role("form")
    await form.wait_for()
    return form


async def act(page: Page, connector: str, action: str) -> None:
    await page.get_by_role("button", name=f"Actions of {connector}").click()
    await page.get_by_role("menuitem", name=action, exact=True).click()


async def fill(form: Locator, **fields: str) -> None:
    for label, text in fields.items():
        await form.get_by_label(label.replace("_", " "), exact=True).fill(text)


def outcome_in(place: Page | Locator) -> Locator:
    return place.get_by_role("status").filter(has_text="The connection")


@pytest.mark.console(118)
async def test_postgresql_connector_is_tested_created_changed_used_and_deleted(
    page: Page, client: httpx.AsyncClient, users_url: str, photographs: Photographs
):
    server = urlsplit(users_url)
    form = await choose_type(page, "postgres", "PostgreSQL")
    await fill(form, Host="127.0.0.1", Port=str(free_port()), Database=server.path.strip("/"))
    await fill(form, User_name=server.username or "", Password="wrong")
    await form.get_by_label("Name (required)").fill("Shop")
    await form.get_by_role("button", name="Test").click()
    await expect(outcome_in(form)).to_contain_text("The connection failed")
    await expect(outcome_in(form)).to_contain_text("Connect: failed")
    await fill(form, Port=str(server.port))
    await expect(outcome_in(form)).to_have_count(0)
    await form.get_by_role("button", name="Test").click()
    await expect(outcome_in(form)).to_contain_text("The login was refused.")
    await expect(outcome_in(form)).to_contain_text("Log in: failed")
    await expect(outcome_in(form)).to_be_in_viewport(ratio=1)
    await accessible(page)
    await photographs(page, "connector-failed")
    await fill(form, Password=server.password or "")
    await form.get_by_role("button", name="Test").click()
    await expect(outcome_in(form)).to_contain_text("The connection works")
    assert await connectors_of(client) == {}
    await form.get_by_role("button", name="Create").click()

    await page.get_by_role("link", name="Shop", exact=True).click()
    await expect(form.get_by_label("Password", exact=True)).to_have_value("********")
    await fill(form, Description="Orders")
    await form.get_by_text("Limits and behavior of statements").click()
    await form.get_by_label("Statement timeout (seconds)").fill("77")
    await form.get_by_role("button", name="Save").click()
    await page.get_by_role("link", name="Shop", exact=True).wait_for()
    stored = (await connectors_of(client))["Shop"]
    assert (stored["description"], stored["statement_timeout_s"], stored["version"]) == ("Orders", 77, 2)
    await act(page, "Shop", "Test")
    await expect(outcome_in(page.get_by_role("dialog"))).to_contain_text("The connection works")
    await page.get_by_role("dialog").get_by_role("button", name="Close").click()

    await page.get_by_role("navigation", name="Views").get_by_role("link", name="Editor").click()
    await page.get_by_role("combobox", name="Connector").select_option(label="Shop")
    await page.goto(LIST)
    await act(page, "Shop", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete the connector").click()
    await page.get_by_text("No connector is stored.").wait_for()
    assert await connectors_of(client) == {}


@pytest.mark.console(118)
async def test_connector_made_in_the_form_runs_statements_in_the_editor(page: Page, client: httpx.AsyncClient):
    form = await choose_type(page, "duckdb", "DuckDB")
    await form.get_by_label("Name (required)").fill("Scratch")
    await form.get_by_role("button", name="Create").click()
    await page.get_by_role("link", name="Scratch", exact=True).wait_for()
    connector = (await connectors_of(client))["Scratch"]["id"]
    await page.goto(f"/editor?connector={connector}&statement=SELECT+6+*+7+AS+answer")
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.get_by_role("gridcell", name="42").wait_for()


@pytest.mark.console(119)
async def test_refused_values_are_shown_at_their_fields(
    page: Page, client: httpx.AsyncClient, photographs: Photographs
):
    await create(client, "Taken", "sqlite", "sqlite")
    form = await choose_type(page, "duckdb", "DuckDB")
    await form.get_by_label("Name (required)").fill("taken")
    await form.get_by_label("Threads").fill("0")
    await form.get_by_label("Memory limit").fill("much")
    await form.get_by_text("Limits and behavior of statements").click()
    await form.get_by_label("Metadata timeout (seconds)").fill("-1")
    await form.get_by_text("Limits and behavior of statements").click()
    await form.get_by_role("button", name="Create").click()
    timeout = form.get_by_label("Metadata timeout (seconds)")
    await expect(timeout).to_have_attribute("aria-invalid", "true")
    await expect(timeout).to_be_focused()
    await timeout.fill("30")
    await form.get_by_role("button", name="Create").click()
    for label in ("Threads", "Memory limit"):
        await expect(form.get_by_label(label)).to_have_attribute("aria-invalid", "true")
    await accessible(page)
    await photographs(page, "connector-refused")
    await form.get_by_label("Threads").fill("1")
    await form.get_by_label("Memory limit").fill("1GB")
    await form.get_by_role("button", name="Create").click()
    await expect(form.get_by_label("Name (required)")).to_have_attribute("aria-invalid", "true")
    await expect(form.get_by_label("Name (required)")).to_be_focused()


@pytest.mark.console(119)
async def test_unsaved_changes_survive_other_views_and_are_discarded_on_request(page: Page, client: httpx.AsyncClient):
    await create(client, "Kept", "sqlite", "sqlite")
    await page.goto(LIST)
    await page.get_by_role("link", name="Kept", exact=True).click()
    form = page.get_by_role("form")
    await fill(form, Description="New text")
    await page.get_by_role("navigation", name="Views").get_by_role("link", name="Queries").click()
    await page.get_by_role("heading", name="Queries", level=1).wait_for()
    await page.go_back()
    await expect(form.get_by_label("Description")).to_have_value("New text")
    await page.get_by_role("navigation", name="Operate").get_by_role("link", name="Connectors").click()
    await page.get_by_role("list", name="Connectors that are not saved").get_by_role("link", name="Kept").click()
    await expect(form.get_by_label("Description")).to_have_value("New text")
    await form.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Discard the changes").click()
    await page.get_by_role("link", name="Kept", exact=True).click()
    await expect(form.get_by_label("Description")).to_have_value("Embedded database file")


@pytest.mark.console(119)
async def test_change_of_another_administrator_is_not_overwritten(page: Page, client: httpx.AsyncClient):
    connector_id = await create(client, "Both", "sqlite", "sqlite")
    await page.goto(f"{LIST}?stored={connector_id}")
    form = page.get_by_role("form")
    await fill(form, Description="Mine")
    change = {"id": connector_id, "description": "Theirs"}
    (await client.post("/api/v1/connector/instance/update", json={"connector": change})).raise_for_status()
    await form.get_by_role("button", name="Save").click()
    await form.get_by_role("button", name="Discard my changes and load the stored connector").click()
    await expect(form.get_by_label("Description")).to_have_value("Theirs")


@pytest.mark.console(119)
@pytest.mark.security("T9")
async def test_secret_goes_to_no_new_host_and_into_no_copy(page: Page, client: httpx.AsyncClient):
    secret = "mysql://svc:planted@127.0.0.1:3306/shop"
    connector_id = await create(client, "Secret", "mysql", "sqlalchemy", url=secret)
    await page.goto(f"{LIST}?stored={connector_id}")
    form = page.get_by_role("form")
    await fill(form, Host="127.0.0.2")
    await form.get_by_role("button", name="Save").click()
    refusal = form.get_by_text("Must be set again, because the address, driver or user has changed.")
    await expect(refusal).to_be_focused()
    await form.get_by_role("button", name="Replace: Password").click()
    await fill(form, Password="p@ss/word")
    await form.get_by_role("button", name="Save").click()
    await page.get_by_role("link", name="Secret", exact=True).wait_for()
    assert (await connectors_of(client))["Secret"]["url"] == "mysql://svc:********@127.0.0.2:3306/shop"
    await act(page, "Secret", "Duplicate")
    await form.get_by_text("Passwords are not copied").wait_for()
    await expect(form.get_by_label("Name (required)")).to_have_value("Secret (copy)")
    await expect(form.get_by_label("Password", exact=True)).to_have_value("")
    await expect(form.get_by_label("Host", exact=True)).to_have_value("127.0.0.2")
    assert "planted" not in await page.content()


@pytest.mark.console(118)
async def test_list_has_stored_connectors_and_those_of_the_settings_file(
    page: Page, client: httpx.AsyncClient, photographs: Photographs
):
    await page.goto(LIST)
    await page.get_by_text("No connector is stored.").wait_for()
    await accessible(page)
    await page.get_by_role("button", name="Install examples").click()
    stored = page.get_by_role("region", name="Stored connectors")
    await expect(stored.get_by_role("row")).to_have_count(3)
    in_file = page.get_by_role("region", name="Connectors of the settings file")
    await in_file.get_by_role("cell", name="duckdb").first.wait_for()
    await expect(in_file.get_by_role("button")).to_have_count(0)
    await expect(in_file.get_by_role("link")).to_have_count(0)
    await accessible(page)
    await photographs(page, "connectors")
    await page.get_by_label("Search").fill("sqlite (in")
    await expect(stored.get_by_role("row")).to_have_count(2)


@pytest.mark.console(118)
async def test_types_are_searched_and_those_that_need_more_are_folded(page: Page, photographs: Photographs):
    await page.goto(LIST)
    await page.get_by_role("button", name="New connector").click()
    runs = page.get_by_role("list", name="Types that this server runs")
    await runs.get_by_role("link", name="PostgreSQL").wait_for()
    await accessible(page)
    await photographs(page, "connector-types")
    await page.get_by_label("Search for a type").fill("livy")
    await page.get_by_role("list", name="Other types").get_by_role("link", name="SparkSQL").wait_for()
    await expect(runs).to_have_count(0)


@pytest.mark.console(118)
async def test_form_of_hive_has_a_field_for_each_option(
    page: Page, client: httpx.AsyncClient, photographs: Photographs
):
    form = await choose_type(page, "hive hiveserver2", "Hive")
    await photographs(page, "connector-hive")
    for title in ("Advanced settings", "Limits and behavior of statements"):
        await form.get_by_text(title).click()
    answer = await client.post("/api/v1/connector/instance/new/hive/hiveserver2", json={})
    options = [one for one in answer.json()["connector"]["options"] if one["section"] != "unused"]
    # Name, description and groups are fields of all connectors.
    fields = form.locator("input, select, textarea")
    await expect(fields).to_have_count(len(options) + 3)
    assert json.dumps(await fields.evaluate_all("all => all.map(one => one.labels.length)")) == json.dumps(
        [1] * (len(options) + 3)
    )
    await accessible(page)
    await photographs(page, "connector-hive-open")


@pytest.mark.console(118)
async def test_user_without_rights_sees_no_connector(context: BrowserContext, console_server: ServerProcess):
    environment = os.environ | {"QUERYSERVER__DESKTOP__DATA_DIR": str(console_server.stdout_file.parent / "data")}
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "create-user", "carl", "--password-stdin"), env=environment, stdin=asyncio.subprocess.PIPE
    )
    await process.communicate(f"{PASSWORD}\n".encode())
    assert process.returncode == 0
    opened = await context.new_page()
    await opened.goto(LIST)
    await log_in(opened, "carl")
    await opened.get_by_text("These pages are for administrators.").wait_for()
    await expect(opened.get_by_role("table")).to_have_count(0)
