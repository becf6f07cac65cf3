"""Metadata calls while statements keep an engine busy (Contract editor 14, item 11)."""

import asyncio

import pytest
from tests.api.dialects import Dialect
from tests.api.driving import Api, Caller
from tests.api.metadata_objects import make_shop
from tests.timing import soon


@pytest.mark.item(11)
@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_metadata_calls_answer_while_twenty_statements_run(api: Api, ana: Caller, bob: Caller, dialect: Dialect):
    shop = await make_shop(bob, dialect)
    busy = [(await ana.execute(dialect, dialect.slow))["history_uuid"] for _ in range(20)]
    await ana.running(busy[0])
    try:
        for path in (
            f"editor/autocomplete/{shop.schema}",
            f"editor/autocomplete/{shop.schema}/{shop.items}",
            f"editor/sample/{shop.schema}/{shop.items}",
        ):
            # A second on a machine of its own; this one runs twenty statements and the tests on few cores.
            await soon(lambda path=path: bob.told(path, snippet=shop.snippet, refresh="true"), within_s=3)
    finally:
        await asyncio.gather(*(ana.on(operation, "cancel_statement") for operation in busy))
