"""The API reference and the root page in a real browser, which applies the pages' own content security policy (Contract
platform 9.4).
"""

import asyncio
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE, Page, chromium, opened

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

PASSWORD = "a long enough word"
WIDE, NARROW = (1280, 900), (400, 900)


@pytest.fixture(scope="module")
def devtools() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD, "QUERYSERVER__DESKTOP__CONSOLE__ENABLED": "false"}
    async with running_server(tmp_path_factory.mktemp("pages") / "data", settings=settings) as process:
        yield process


async def until(page: Page, condition: str) -> None:
    """Wait until a JavaScript expression is true in the page. On timeout, fail with the page's text."""
    try:
        await page.value(
            "new Promise((go, no) => { const end = Date.now() + 45000; const check = () => "
            f"({condition}) ? go() : Date.now() > end ? no(new Error('late')) : setTimeout(check, 50); check(); }})"
        )
    except AssertionError as problem:
        shown = await page.value("document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"{condition}\n{shown}\n{page.complaints}") from problem


async def drawn(page: Page) -> None:
    await until(page, "document.body.dataset.ready")


async def photograph(page: Page, file: Path, size: tuple[int, int]) -> None:
    """Save a screenshot of the page in a window of this size. Fails if the page is wider than the window."""
    width, height = size
    await page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    # In the first frame the browser recomputes the layout; when the second begins, the layout has been painted.
    await page.value("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")
    assert await page.value("document.scrollingElement.scrollWidth") <= width
    picture = await page.screenshot()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000
    await asyncio.to_thread(file.write_bytes, picture)


async def calls_shown(page: Page) -> list[str]:
    found = "[...document.querySelectorAll('.opblock .opblock-summary-operation-id')].map(one => one.textContent)"
    return await page.value(found)


def open_call(name: str) -> str:
    return f"document.getElementById('operations-{name}')"


async def answered(page: Page, call: str) -> str:
    """Wait until a call made with the "try it out" form has a response; return the HTTP status that the page shows."""
    cell = f"{call}.querySelector('.live-responses-table tr.response .response-col_status')"
    await until(page, cell)
    return (await page.value(f"{cell}.innerText")).split()[0]


async def test_reference_shows_guide_tags_calls_fields_and_codes(
    devtools: str, server: ServerProcess, tmp_path: Path
) -> None:
    async with opened(devtools, f"{server.base_url}/api/docs#/editor/execute_on") as page:
        await drawn(page)
        document: dict[str, Any] = await page.value("fetch('/api/schema').then(answer => answer.json())")
        names = [call["operationId"] for calls in document["paths"].values() for call in calls.values()]
        assert sorted(await calls_shown(page)) == sorted(names)
        headings = await page.value("[...document.querySelectorAll('.info h2')].map(one => one.textContent)")
        assert [one for one in headings if not one.startswith("Query Server API")] == re.findall(
            r"^## (.+)$", document["info"]["description"], re.MULTILINE
        )
        tags = await page.value("[...document.querySelectorAll('.opblock-tag')].map(one => one.dataset.tag)")
        assert set(tags) == {tag["name"] for tag in document["tags"]}

        # The operation that the URL names is expanded and visible, with its curl command, fields and responses.
        call = open_call("editor-execute_on")
        await until(page, f"{call}.innerText.includes('ExecuteRequest')")
        top = await page.value(f"{call}.getBoundingClientRect().top")
        assert 0 <= top < 500
        text: str = await page.value(f"{call}.innerText")
        fields = document["components"]["schemas"]["ExecuteRequest"]["properties"]
        for field, type_ in (("statement", "string"), ("wait", "number"), ("limit", "integer")):
            meaning = re.escape(fields[field]["description"].partition("`")[0].strip())
            assert len(meaning) > 5
            assert re.search(rf"^{field}.*{type_}.*\n\n{meaning}", text, re.MULTILINE), (field, text)
        required = await page.value(f"[...{call}.querySelectorAll('[class*=required]')].length")
        assert required > 0
        assert f"{server.base_url}/api/v1/editor/execute/duckdb" in text
        await photograph(page, tmp_path / "reference.png", WIDE)
        await photograph(page, tmp_path / "reference-narrow.png", NARROW)

        shown = await page.value(
            "[...document.querySelectorAll('#codes tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))"
        )
        assert shown == [
            [one["code"], ", ".join(map(str, one["http"])), one["meaning"].replace("`", "")]
            for one in document["x-error-codes"]
        ]
        links = "[...document.querySelectorAll('#bar a')].filter(one => one.getAttribute('href').startsWith('#'))"
        for part in await page.value(f"{links}.map(one => one.hash.slice(1))"):
            await page.value(f"{links}.find(one => one.hash === '#{part}').click()")
            await until(page, f"Math.abs(document.getElementById('{part}')?.getBoundingClientRect().top) < 300")
        await page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        heights = await page.value("[...document.querySelectorAll('#codes td a')].map(one => one.offsetHeight)")
        assert max(heights) < 30, "a code is broken into lines"
        await page.value("location.hash = '#code-quota_exceeded'")
        await until(page, "document.getElementById('code-quota_exceeded').getBoundingClientRect().top < 600")
        assert page.complaints == []


async def test_filter_finds_calls_by_field_and_codes_by_word(
    devtools: str, server: ServerProcess, tmp_path: Path
) -> None:
    async with opened(devtools, f"{server.base_url}/api/docs?filter=qquuid") as page:
        await drawn(page)
        await until(page, "document.querySelectorAll('.opblock').length < 10")
        assert set(await calls_shown(page)) == {"upload_part", "complete_upload", "get_upload", "discard_upload"}
        await photograph(page, tmp_path / "filtered.png", WIDE)

        filter_by = "(text => { const one = document.getElementById('filter'); one.value = text;"
        filter_by += " one.dispatchEvent(new Event('input')); })"
        await page.value(f"{filter_by}('row_too_large')")
        shown = "[...document.querySelectorAll('#codes tbody tr')].filter(row => !row.hidden).map(row => row.id)"
        assert await page.value(shown) == ["code-row_too_large"]
        await page.value(f"{filter_by}('')")
        await until(page, "document.querySelectorAll('.opblock').length > 100")
        assert page.complaints == []


async def test_reader_logs_in_and_tries_a_call_with_token(devtools: str, server: ServerProcess, tmp_path: Path) -> None:
    async with opened(devtools, f"{server.base_url}/api/docs#/token/log_in") as page:
        await drawn(page)
        login = open_call("token-log_in")
        await until(page, f"{login}?.querySelector('.try-out__btn')")
        await page.value(f"{login}.querySelector('.try-out__btn').click()")
        await until(page, f"{login}.querySelector('textarea')")
        # React overrides the element's setter. Only the prototype's setter lets React notice the change.
        body = json.dumps(json.dumps({"username": "admin", "password": PASSWORD}))
        setter = "Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, 'value').set"
        changed = "field.dispatchEvent(new Event('input', {bubbles: true}))"
        field = f"{login}.querySelector('textarea')"
        await page.value(f"(field => {{ {setter}.call(field, {body}); {changed}; }})({field})")
        await page.value(f"{login}.querySelector('.execute').click()")
        assert await answered(page, login) == "200"

        await page.value("location.hash = '#/get_config/get_config'")
        call = open_call("get_config-get_config")
        await until(page, f"{call}?.querySelector('.try-out__btn')")
        await page.value(f"{call}.querySelector('.try-out__btn').click()")
        await until(page, f"{call}.querySelector('.execute')")
        await page.value(f"{call}.querySelector('.execute').click()")
        assert await answered(page, call) == "200"
        assert "app_config" in await page.value(f"{call}.querySelector('.live-responses-table').innerText")
        await page.value(f"{call}.querySelector('.responses-wrapper').scrollIntoView()")
        await photograph(page, tmp_path / "tried.png", WIDE)
        kept = await page.value("JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])")
        assert json.loads(kept) == [0, 0, ""]
        assert page.complaints == []


async def test_every_call_has_a_shell_readable_curl_command(
    devtools: str, server: ServerProcess, tmp_path: Path
) -> None:
    async with opened(devtools, f"{server.base_url}/api/docs") as page:
        await drawn(page)
        document: dict[str, Any] = await page.value("fetch('/api/schema').then(answer => answer.json())")
        commands: dict[str, str] = json.loads(await page.value("JSON.stringify(curlOfEach())"))
        assert page.complaints == []
    calls = {(method, path): call for path, some in document["paths"].items() for method, call in some.items()}
    assert commands.keys() == {f"{method} {path}" for method, path in calls}
    for (method, path), call in calls.items():
        words = shlex.split(commands[f"{method} {path}"].replace("\\\n", " "))
        assert words[0] == "curl"
        assert words[words.index("-X") + 1] == method.upper()
        (address,) = [word for word in words if word.startswith(server.base_url)]
        assert "{" not in address
        assert ("-OJ" in words) is ("application/octet-stream" in call["responses"].get("200", {}).get("content", {}))
        assert ("Authorization: Bearer $TOKEN" in words) is bool(call["security"]), path
        assert "-d" in words or "-F" in words or "requestBody" not in call, path

    script = 'TOKEN=$(curl -fsS "$B/api/v1/token/auth" -d username=admin --data-urlencode "password=$PASSWORD" |'
    script += " python3 -c 'import json, sys; print(json.load(sys.stdin)[\"access\"])')\n"
    for name in ("post /api/v1/get_config", "get /api/v1/editor/get_history", "post /api/v1/editor/create_notebook"):
        script += commands[name].replace("curl ", "curl -fsS ", 1) + "\necho\n"
    answers = await printed(script, server, tmp_path)
    assert [json.loads(line)["status"] for line in answers.splitlines()[-2:]] == [0, 0]


async def test_root_page_explains_product_and_login(devtools: str, server: ServerProcess, tmp_path: Path) -> None:
    async with opened(devtools, f"{server.base_url}/") as page:
        text: str = await page.value("document.body.innerText")
        assert "runs SQL over HTTP" in text
        commands: str = await page.value("document.getElementById('login').textContent")
        links = await page.value("[...document.querySelectorAll('a')].map(one => one.href)")
        statuses = await page.value(
            "Promise.all([...document.querySelectorAll('a')].map(one => fetch(one.href).then(answer => answer.status)))"
        )
        await photograph(page, tmp_path / "root.png", WIDE)
        await photograph(page, tmp_path / "root-narrow.png", NARROW)
        assert page.complaints == []
    assert f"{server.base_url}/api/docs" in links
    assert set(statuses) == {200}
    assert "app_config" in json.loads((await printed(commands, server, tmp_path)).splitlines()[-1])


async def printed(script: str, server: ServerProcess, directory: Path) -> str:
    """Run the commands from the page in a shell; return their output. Fails if one of them does."""
    process = await asyncio.create_subprocess_exec(
        "bash", "-e", "-u", "-o", "pipefail", "-c", script,
        cwd=directory,
        env=os.environ | {"PASSWORD": PASSWORD, "B": server.base_url},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors.decode()) == (0, "")
    return output.decode()
