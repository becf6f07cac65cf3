"""Grants by the command line hold for the next call of a running server (Contract platform 4.3, 12)."""

from pathlib import Path
from typing import Any

import pytest
from tests.api.connectors.driving import Keeper, instances_of
from tests.api.driving import Api, Caller
from tests.unit.cli.test_commands import Command, command_in

from queryserver.connectors.instances import Draft
from queryserver.identity.users import Groups


@pytest.fixture
def command(tmp_path: Path, folder_database_dsn: str) -> Command:
    """The program beside the running server."""
    return command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=folder_database_dsn)


@pytest.mark.platform(54, 63)
@pytest.mark.security("T22")
async def test_granting_and_taking_a_connector_change_the_next_call(api: Api, keeper: Keeper, command: Command) -> None:
    ana = await api.user("ana", groups=("watchers",))
    made = await keeper.save(
        nice_name="Granted by hand", dialect="sqlite", interface="sqlite", settings={"path": ":memory:"}, groups=[]
    )
    number = made["id"]
    assert await _sees(ana, number) is False
    assert (await command("grant", "watchers", f"connector:{number}")).code == 0
    assert await _sees(ana, number) is True
    operation = (await ana.run(number, "select 41 + 1"))["history_uuid"]
    assert (await ana.page(operation))["data"] == [[42]]
    assert (await command("ungrant", "watchers", f"connector:{number}")).code == 0
    assert await _sees(ana, number) is False
    assert await ana.refused("editor/fetch_result_data", operationId=operation) == (403, -1, "permission_denied")
    # All of them at once, and by way of another group.
    groups = Groups(api.database)
    await groups.grant("default", "connector:*")
    try:
        assert await _sees(ana, number) is True
    finally:
        await groups.ungrant("default", "connector:*")
    assert await _sees(ana, number) is False


@pytest.mark.platform(54)
@pytest.mark.security("T22")
async def test_a_right_that_is_taken_during_a_change_does_not_come_back(
    api: Api, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await keeper.save(
        nice_name="Taken meanwhile", dialect="sqlite", interface="sqlite", settings={}, groups=["default"]
    )
    groups = Groups(api.database)
    await groups.create("given-meanwhile")
    drafts = api.services.stored_connectors
    usual = drafts.draft

    async def slow(*asked: Any) -> Draft:
        draft = await usual(*asked)
        await groups.ungrant("default", f"connector:{made['id']}")
        await groups.grant("given-meanwhile", f"connector:{made['id']}")
        return draft

    monkeypatch.setattr(drafts, "draft", slow)
    changed = await keeper.send({"id": made["id"], "description": "x"})
    assert (changed["description"], changed["groups"]) == ("x", ["given-meanwhile"])


@pytest.mark.platform(63)
@pytest.mark.security("T10")
async def test_a_right_given_before_its_connector_was_there_does_not_open_it(api: Api, keeper: Keeper) -> None:
    ana = await api.user("ana", groups=("early",))
    made = await keeper.create("First", "sqlite", "sqlite")
    await Groups(api.database).grant("early", f"connector:{int(made['id']) + 1}")
    later = await keeper.save(nice_name="Later", dialect="sqlite", interface="sqlite", settings={}, groups=[])
    assert int(later["id"]) == int(made["id"]) + 1
    assert later["groups"] == []
    assert await _sees(ana, later["id"]) is False


async def _sees(caller: Caller, number: str) -> bool:
    """What every kind of call says alike."""
    listed = number in {one["id"] for one in await instances_of(caller)}
    got = (await caller.get(f"connector/instance/get/{number}")).status_code == 200
    executed = await caller.post(f"editor/execute/{number}", statement="select 1", wait=30)
    assert executed.status_code in {200, 404}
    assert listed == got == (executed.status_code == 200)
    return listed
