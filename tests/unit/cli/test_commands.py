"""The command line (Contract platform 12): effects, output and exit codes."""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.e2e.harness import running_server
from tests.fixtures.database import execute
from tests.fixtures.program import CommandOutput, run

from queryserver.platform.migrations import newest_revision, read_schema

PASSWORD = "correct horse battery"


Command = Callable[..., Awaitable[CommandOutput]]


def command_in(directory: Path, **environ: str) -> Command:
    """Return a function that runs the program in `directory` with only the given environment variables."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "COLUMNS": "200", **environ}

    async def ended(*arguments: str, stdin: str = "") -> CommandOutput:
        return await run(*arguments, cwd=directory, env=environment, stdin=stdin)

    return ended


@pytest.fixture
def command(tmp_path: Path, database_dsn: str) -> Command:
    """Provide a function that runs the program on a migrated database."""
    return command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn)


@pytest.fixture
def bare(tmp_path: Path) -> Command:
    """Provide a function that runs the program without any configuration."""
    return command_in(tmp_path)


async def test_version_and_openapi_need_no_settings(bare: Command) -> None:
    from queryserver import __version__

    assert await bare("version") == CommandOutput(0, f"{__version__}\n", "")
    assert json.loads((await bare("openapi")).out)["openapi"].startswith("3.1")


@pytest.mark.parametrize("arguments",
    ["nonsense", "create-user", "set-admin ana maybe", "revoke-tokens", "close_queries x",
    "close_sessions 0"])  # fmt: skip
async def test_wrong_usage_exits_with_2(bare: Command, arguments: str) -> None:
    assert (await bare(*arguments.split())).code == 2


async def test_commands_without_a_database_exit_with_3(bare: Command, tmp_path: Path) -> None:
    missing = await bare("list-users")
    assert missing.code == 3
    assert missing.err == (
        "error desktop.database.url: a PostgreSQL database is required,"
        " unless the server runs with `serve --embedded`.\n"
    )
    refusing = command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL="postgresql://u:planted@127.0.0.1:1/x")
    ended = await refusing("list-users")
    assert (ended.code, ended.err) == (3, "The service database cannot be reached.\n")
    assert (await refusing("is_db_alive")).code == 1


@pytest.mark.platform(51)
async def test_sqlite_url_is_rejected_in_favor_of_postgresql(tmp_path: Path) -> None:
    ended = await command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL="sqlite:///x.db")("serve")
    assert ended.code == 3
    assert "PostgreSQL" in ended.err


@pytest.mark.platform(49)
async def test_config_check_lists_every_problem_without_secrets(bare: Command, tmp_path: Path) -> None:
    (tmp_path / "queryserver.toml").write_text(
        "[desktop]\nsecret_key = 'planted'\nhttp_port = 'planted'\n[desktop.smtp]\npassword = 'planted'\n"
        "[desktop.database]\nurl = 'postgresql://u:planted@h/d'\n[editor]\ncolor = 1\n"
    )
    ended = await bare("config", "check", "--values")
    assert ended.code == 3
    assert (await bare("config", "check")).out == ended.out.partition("\n\n")[0] + "\n"
    assert re.findall(r"^error ([\w.]+): ", ended.out, re.MULTILINE) == [
        "editor.color",
        "desktop.http_port",
        "desktop.secret_key",
        "desktop.database",
    ]
    assert "planted" not in ended.out + ended.err
    assert 'password = "********"  # file' in ended.out


async def test_config_check_connects_to_the_database(command: Command, tmp_path: Path) -> None:
    assert (await command("config", "check")).code == 0
    refusing = command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL="postgresql://127.0.0.1:1/x")
    ended = await refusing("config", "check")
    assert ended.code == 3
    assert "error desktop.database: The service database cannot be reached." in ended.out.splitlines()
    assert (await refusing("config", "check", "--offline")).code == 0


async def test_config_check_examines_the_local_root(command: Command, tmp_path: Path) -> None:
    (tmp_path / "queryserver.toml").write_text(f"[filebrowser]\nlocal_root = '{tmp_path}/missing'\n")
    ended = await command("config", "check", "--offline")
    problem = f"error filebrowser.local_root: {tmp_path}/missing is not a directory."
    assert ended.code == 3
    assert problem in ended.out.splitlines()
    (tmp_path / "missing").mkdir()
    assert (await command("config", "check", "--offline")).code == 0


async def test_config_init_never_overwrites(bare: Command, tmp_path: Path) -> None:
    assert (await bare("config", "init")).code == 0
    written = (tmp_path / "queryserver.toml").read_text()
    assert (await bare("config", "init")).code == 1
    assert (tmp_path / "queryserver.toml").read_text() == written


@pytest.mark.platform(52)
async def test_migrations_may_run_twice_and_concurrently(tmp_path: Path, unmigrated_dsn: str) -> None:
    command = command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=unmigrated_dsn)
    assert (await command("migrate", "--check")).code == 1
    assert (await command("serve", "--port", "0")).code == 3
    assert (await command("list-users")).code == 3
    both = await asyncio.gather(command("migrate"), command("migrate"))
    assert [ended.code for ended in both] == [0, 0], both
    assert (await command("migrate", "--check")).code == 0


@pytest.mark.platform(52)
@pytest.mark.parametrize("revision", ["0000", "9999"])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_schema_of_another_version_is_not_served(command, database_dsn, revision, workers) -> None:
    await execute(database_dsn, f"update alembic_version set version_num = '{revision}'")
    ended = await command("serve", "--port", "0", "--workers", workers)
    assert (ended.code, ended.out) == (3, "")
    assert f"The database has schema version {revision}, but this release requires " in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.platform(52)
async def test_auto_migrate_upgrades_before_serving(tmp_path: Path, unmigrated_dsn: str) -> None:
    settings = {"QUERYSERVER__DESKTOP__DATABASE__AUTO_MIGRATE": "true"}
    async with running_server(tmp_path / "data", database_dsn=unmigrated_dsn, settings=settings):
        assert (await read_schema(unmigrated_dsn)).version == newest_revision()
    await execute(unmigrated_dsn, "update alembic_version set version_num = '9999'")
    command = command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=unmigrated_dsn, **settings)
    assert (await command("serve", "--port", "0")).code == 3
    assert (await read_schema(unmigrated_dsn)).version == "9999"


async def test_user_can_be_created_changed_and_deleted(command: Command) -> None:
    made = await command("create-user", "Ana", "--password-stdin", "--email", "a@b.example", stdin=f"{PASSWORD}\n")
    assert (made.code, made.out) == (0, "User ana created.\n")
    assert (await command("create-user", "ANA", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 1
    assert (await command("create-user", "bob", "--password-stdin", stdin="short\n")).code == 2
    weak = await command("create-user", "bob", "--password-stdin", stdin="1234567890\n")
    assert (weak.code, "easy to guess" in weak.err, "Choose several unrelated words" in weak.err) == (2, True, True)
    assert (await command("set-password", "ana", "--password-stdin", stdin="aaaaaaaaaa\n")).code == 2
    assert (await command("create-user", "a b", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 2
    assert (await command("create-user", "cy", "--group", "no", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 1
    assert (await command("disable-user", "ana")).code == 0
    [listed] = json.loads((await command("list-users", "--json")).out)
    assert (listed["username"], listed["email"], listed["is_active"]) == ("ana", "a@b.example", False)
    assert "password_hash" not in listed
    assert (await command("enable-user", "ana")).code == 0
    assert (await command("set-password", "ana", "--password-stdin", stdin="another password\n")).code == 0
    assert (await command("unlock", "ana")).code == 0
    assert (await command("revoke-tokens", "ana")).code == 0
    assert (await command("revoke-tokens", "--all")).out == "Revoked the tokens of 1 users.\n"
    assert (await command("disable-user", "nobody")).code == 1
    assert (await command("list-users")).out == (
        "USER\tKIND\tSTATE\tGROUPS\tEMAIL\nana\tuser\tactive\tdefault\ta@b.example\n"
    )


@pytest.mark.platform(55)
async def test_last_administrator_cannot_be_removed(command: Command) -> None:
    for name in ("ana", "bob"):
        await command("create-user", name, "--admin", "--password-stdin", stdin=f"{PASSWORD}\n")
    both = await asyncio.gather(command("disable-user", "ana"), command("set-admin", "bob", "off"))
    assert sorted(ended.code for ended in both) == [0, 1]
    refused = next(ended for ended in both if ended.code)
    assert "last active administrator" in refused.err


async def test_password_is_never_an_argument(command: Command) -> None:
    assert (await command("create-user", "ana", "--password", PASSWORD)).code == 2
    assert (await command("set-password", "ana", PASSWORD)).code == 2
