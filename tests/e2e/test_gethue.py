"""The unmodified npm package gethue works in a real browser with a real server (Contract platform 13, item 87).

Its version 4.8.3 calls private paths, which Hue's own pages use. As an application would, the test's page redirects
these calls to the public paths and adds the bearer token. All other code is the package's own.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.e2e.harness import running_server
from tests.engines.cache import DOWNLOAD_TIMEOUT_S
from tests.engines.chromium import ENGINE, Page, chromium, opened
from tests.engines.gethue import bundle_page, origin_of

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(DOWNLOAD_TIMEOUT_S + 180)]

PASSWORD = "a long enough word"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the test's page; yield its origin, which differs from the server's origin."""
    directory = tmp_path_factory.mktemp("page")
    bundle_page(ENGINE, directory)
    with origin_of(directory) as address:
        yield address


@pytest.fixture(scope="module")
async def server(origin: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A server with sample data. Its CORS settings allow the page's origin."""
    settings = {
        "QUERYSERVER_ADMIN_PASSWORD": PASSWORD,
        "QUERYSERVER__DESKTOP__CORS_ENABLED": "true",
        "QUERYSERVER__DESKTOP__CORS_ALLOWED_ORIGINS": origin,
    }
    async with running_server(tmp_path_factory.mktemp("server") / "data", settings=settings) as process:
        yield process.base_url


@pytest.fixture
async def page(origin: str) -> AsyncIterator[Page]:
    """The test's page, open in a new browser."""
    with chromium() as devtools:
        async with opened(devtools, f"{origin}/index.html") as page:
            yield page


async def use(page: Page, server: str, statement: str) -> dict[str, Any]:
    """Log in and run one statement through the package; return the package's results."""
    request = {
        "server": server, "username": "admin", "password": PASSWORD, "type": "duckdb", "database": "main",
        "statement": statement,
    }  # fmt: skip
    return await page.value(f"useGethue({request!r})")


@pytest.mark.platform(87)
async def test_package_logs_in_browses_runs_query_and_reads_rows(page: Page, server: str) -> None:
    found = await use(page, server, "SELECT id, name, price FROM products ORDER BY id")
    assert found["interpreters"] == ["duckdb", "postgresql", "sqlite"]
    assert (found["connector"]["id"], found["connector"]["dialect"]) == ("duckdb", "duckdb")
    compute = {"id": "default", "name": "default", "type": "direct", "credentials": {}}
    assert found["namespaces"] == [{"id": "default", "name": "default", "status": "CREATED", "computes": [compute]}]
    assert [one["interface"] for one in found["computes"]] == ["duckdb"]
    assert "main" in found["databases"]
    assert found["status"] == "available", found["refusals"]
    assert [column["name"] for column in found["meta"]][1:] == ["id", "name", "price"]
    # The package limits the result to ten rows, and adds the row number to each.
    assert [row[:2] for row in found["rows"]] == [[number, number] for number in range(1, 11)]
    assert found["size"]["rows"] == 10
    assert found["unknownFields"] == []
    shown = await page.value("[...document.querySelectorAll('table.hue-table tbody tr')].map(row => row.innerText)")
    assert len(shown) == 10
    assert shown[0].split("\t")[1].strip() == found["rows"][0][2]
    assert page.complaints == []
    assert (await page.screenshot()).startswith(b"\x89PNG")


@pytest.mark.platform(87)
async def test_package_receives_failure_reason(page: Page, server: str) -> None:
    found = await use(page, server, "SELECT nothing FROM nowhere")
    assert found.get("rows") is None
    assert "nowhere" in found["refusals"][0]
    assert "Traceback" not in found["refusals"][0]
