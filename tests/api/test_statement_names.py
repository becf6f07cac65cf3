"""What a data source's own views show of the statements of a user (Contract editor 4.9)."""

import pytest
from tests.api.driving import Api, Caller

SHOWN = "SELECT current_setting('application_name') AS name"


@pytest.mark.item(114)
@pytest.mark.parametrize("read_only", ["false", "true"])
async def test_postgresql_shows_the_operation_that_clients_know(api: Api, read_only: str):
    ana = await api.user("ana" * 10)
    body = await ana.run("postgresql", SHOWN, read_only=read_only)
    [[name]] = (await ana.page(body["history_uuid"]))["data"]
    assert name == f"op={body['history_uuid']} user={ana.username}"[:63]


@pytest.mark.item(114)
async def test_each_statement_of_a_script_is_named(ana: Caller):
    body = await ana.run("postgresql", f"{SHOWN}; {SHOWN}", run_all="true")
    [[name]] = (await ana.page(body["history_uuid"]))["data"]
    assert name.startswith("op=")
    assert f" user={ana.username}" in name
