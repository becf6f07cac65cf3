"""Groups by the command line (Contract platform 12); their rules are tested in tests/unit/identity."""

import json
from pathlib import Path

import pytest
from tests.cases import each
from tests.unit.cli.test_commands import PASSWORD, Command, command_in


@pytest.fixture
def command(tmp_path: Path, database_dsn: str) -> Command:
    """The program on a migrated database."""
    return command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn)


async def done(command: Command, arguments: str, out: str = "") -> None:
    ended = await command(*arguments.split())
    assert (ended.code, ended.out) == (0, out), (arguments, ended.err)


@pytest.mark.platform(54)
async def test_the_life_of_a_group(command: Command) -> None:
    assert (await command("create-user", "ana", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 0
    await done(command, "create-group analysts")
    await done(command, "grant analysts connector:7")
    await done(command, "add-to-group ANA analysts")
    await done(command, "list-grants analysts", "GROUP\tRIGHTS\tMEMBERS\nanalysts\tconnector:7\t1\n")
    await done(command, "ungrant analysts connector:7")
    await done(command, "remove-from-group ana analysts")
    listed = json.loads((await command("list-grants", "--json")).out)
    assert [group["name"] for group in listed] == ["analysts", "default"]
    assert listed[0] == {"name": "analysts", "rights": [], "members": 0}
    await done(command, "delete-group analysts")


@each(
    ("arguments", "code", "message"),
    ("delete-group default", 1, "Group default is the one that new users join, and cannot be deleted."),
    ("add-to-group nobody default", 1, "User nobody does not exist."),
    ("grant nothing fly", 2, "There is no right fly."),
)
async def test_how_commands_for_groups_fail(command: Command, arguments: str, code: int, message: str) -> None:
    ended = await command(*arguments.split())
    # The line of the audit comes before or after it.
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err.splitlines()
