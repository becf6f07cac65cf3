"""An application whose search index contains only what the users of the current test have browsed."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.fakes.catalog import FakeCatalogEngine, table
from tests.fixtures.database import new_database

from queryserver.engines.protocol import TableColumn, TableDescription, TableKind
from queryserver.platform.embedded.postgres import EmbeddedPostgres

CALL = "metadata/search/entities_interactive"


@pytest.fixture(scope="module")
async def api(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Api]:
    """An application that all tests in a file share. The tests search for different names or do not change the
    index.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        settings = make_settings(tmp_path_factory.mktemp("search"), dsn, users_url, index=True)
        async with open_api(settings) as opened:
            # Tests trigger refreshes themselves, because a scheduled refresh could run in the middle of a test.
            vars(opened.services.searching.refresh)["_start_due"] = lambda: None
            yield opened


@pytest.fixture
async def ana(api: Api) -> Caller:
    """The user of one test. The index is empty when the test starts."""
    api.shelf.act_as_caller(False)
    await api.database.execute("delete from metadata_scopes")
    await api.database.execute("delete from metadata_answers")
    return await api.user("ana")


def described(database: str, name: str, *columns: str, **more: object) -> TableDescription:
    """Return a table description with integer columns of these names."""
    made = tuple(TableColumn(column, "int") for column in columns)
    return replace(table(database, name), columns=made, **more)


def stock(engine: FakeCatalogEngine) -> None:
    """Fill the engine with the databases and tables for which the tests search."""
    engine.content = {
        "web": {
            "sample_07": described(
                "web", "sample_07", "code", "salary", owner="ana", create_time="2026-01-05T09:10:11Z"
            ),
            "sample_08": described("web", "sample_08", "code", owner="bob", comment="figures of (x|y)+"),
            "resample": described("web", "resample", "a*b", kind=TableKind.VIEW),
        },
        "shop": {"orders": described("shop", "orders", "id", "sample_size")},
    }


async def browse(caller: Caller, connector: str = "shelf", **databases: list[str]) -> None:
    """List databases and tables as the editor does, and wait until the index contains them."""
    await caller.post_ok("editor/autocomplete/", snippet=f'{{"type": "{connector}"}}')
    for database, names in databases.items():
        await caller.post_ok(f"editor/autocomplete/{database}/", snippet=f'{{"type": "{connector}"}}')
        for name in names:
            await caller.post_ok(f"editor/autocomplete/{database}/{name}", snippet=f'{{"type": "{connector}"}}')
    feed = caller.api.services.searching.feed
    assert feed is not None
    await feed.wait_until_idle()


async def found(caller: Caller, text: str, **fields: Any) -> list[str]:
    """Return the names of the search results, in order."""
    body = await caller.post_ok(CALL, query_s=text, **fields)
    return [one["originalName"] for one in body["results"]]
