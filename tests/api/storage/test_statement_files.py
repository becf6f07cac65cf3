"""Statements access files with their caller's permissions, in every session and process (Contract editor 4.7)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.fakes.catalog import FakeCatalogEngine

INTERPRETERS: dict[str, Any] = {
    "lake": {"interface": "fake", "options": {"files": True}},
    "frozen": {"interface": "fake", "options": {"files": True}, "read_only": True},
    "blind": {"interface": "fake"},
    "shelf": {"interface": "fake", "options": {"catalog": True}},
}


@pytest.fixture(scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory, module_database_dsn: str) -> AsyncIterator[Files]:
    directory = tmp_path_factory.mktemp("statement-files")
    tables = {"notebook": {"interpreters": INTERPRETERS}, "editor": {"cancel_wait_s": 30}}
    async with open_api(storage_settings(directory, module_database_dsn, tables=tables)) as api:
        yield Files(api, directory / "files")


@pytest.fixture
def api(files: Files) -> Api:
    return files.api


@pytest.fixture
async def ana(files: Files) -> Caller:
    return await with_home(files, "ana")


@pytest.fixture
async def bob(files: Files) -> Caller:
    return await with_home(files, "bob")


async def with_home(files: Files, name: str, *, admin: bool = False) -> Caller:
    """Create a user whose home directory contains the file `own`. The content of the file is the username."""
    caller = await files.api.user(name, admin=admin)
    home = files.root / "user" / caller.username
    home.mkdir(parents=True)
    (home / "own").write_text(caller.username)
    return caller


def own(caller: Caller) -> str:
    return f"file:///user/{caller.username}/own"


async def program_of(caller: Caller, *scopes: str) -> Caller:
    """Create an API token with these scopes for the user; return a program that authenticates with it."""
    made = await caller.post_json("token/api_tokens/new", name=f"program {uuid4()}", scopes=scopes)
    assert made.status_code == 200, made.text
    return Caller(caller.api, caller.username, {"Authorization": f"Bearer {made.json()['value']}"})


async def session_of(caller: Caller, dialect: str = "lake") -> int:
    return (await caller.post_ok("editor/create_session", session=json.dumps({"type": dialect})))["session"]["id"]


async def read(caller: Caller, path: str, dialect: str = "lake", **fields: Any) -> str:
    """Read a file with a statement; return its content. If the statement fails, return the error code and message."""
    body = await caller.run(dialect, f"from {path}", **fields)
    if body["status"]:
        return f"{body['code']} {body['message']}"
    return (await caller.page(body["history_uuid"]))["data"][0][0]


async def refusal(caller: Caller, statement: str, dialect: str = "lake", **fields: Any) -> str:
    body = await caller.run(dialect, statement, **fields)
    assert body["status"] == 1, body
    return f"{body['code']} {body['message']}"


@pytest.mark.item(95)
async def test_users_sharing_a_connector_read_only_their_own_files(ana: Caller, bob: Caller):
    async def reads(caller: Caller, other: Caller, **fields: Any) -> None:
        for _ in range(10):
            assert await read(caller, own(caller), **fields) == caller.username
            found = await read(caller, own(other), **fields)
            assert found.startswith(f"permission_denied {own(other)}: "), found

    sessions = [await session_of(caller) for caller in (ana, bob)]
    await asyncio.gather(
        reads(ana, bob),
        reads(bob, ana),
        reads(ana, bob, session_id=sessions[0]),
        reads(bob, ana, session_id=sessions[1]),
    )


@pytest.mark.item(97)
async def test_statements_write_where_storage_calls_may_and_the_user_owns_the_file(
    files: Files, ana: Caller, bob: Caller
):
    path = f"file:///user/{ana.username}/new.txt"
    assert (await ana.run("lake", f"copy {path} some text"))["status"] == 0
    downloaded = await ana.get("storage/download", path=path)
    assert downloaded.text == "some text"
    assert (await refusal(bob, f"copy {path} other")).startswith(f"permission_denied {path}: ")
    assert (await refusal(ana, "copy file:///etc/x text")).startswith("path_not_found ")
    assert (await refusal(ana, "copy file:///x text")).startswith("permission_denied file:///x: ")
    assert (await ana.get("storage/download", path=path)).text == "some text"


@pytest.mark.item(99)
@pytest.mark.parametrize(("scopes", "may_read", "may_write"), [
    (("query",), False, False), (("query", "files:read"), True, False),
    (("query", "files:write"), False, True), (("query", "files:read", "files:write"), True, True)])  # fmt: skip
@pytest.mark.parametrize("in_session", [False, True])
async def test_api_token_scopes_limit_statements_even_in_the_users_session(
    ana: Caller, scopes: tuple[str, ...], *, may_read: bool, may_write: bool, in_session: bool
):
    program = await program_of(ana, *scopes)
    fields = {"session_id": await session_of(ana)} if in_session else {}
    assert await read(ana, own(ana), **fields) == ana.username
    lacks = f"permission_denied {own(ana)}: The API token of this statement lacks the scope files:"
    found = await read(program, own(ana), **fields)
    assert found == (ana.username if may_read else f"{lacks}read.")
    target = f"file:///user/{ana.username}/{uuid4()}"
    body = await program.run("lake", f"copy {target} text", **fields)
    assert (body["status"] == 0) is may_write
    script = await program.run("lake", f"ddl; from {own(ana)}", run_all="true", **fields)
    assert (script["status"] == 0) is may_read
    # Later statements in the session are not restricted by the token.
    assert await read(ana, own(ana), **fields) == ana.username


@pytest.mark.item(99)
async def test_administrators_api_token_cannot_read_other_homes(files: Files, ana: Caller):
    root = await with_home(files, "root", admin=True)
    assert await read(root, own(ana)) == ana.username
    program = await program_of(root, "query", "files:read")
    assert (await read(program, own(ana))).startswith("permission_denied ")
    assert await read(program, own(root)) == root.username


@pytest.mark.item(99)
async def test_statements_run_by_another_process_keep_their_token_limits(api: Api, ana: Caller):
    program = await program_of(ana, "query")
    await program.run("lake", f"from {own(ana)}")
    stored = "select api_token from statements where user_id = (select id from users where username = $1)"
    rows = await api.database.fetch(f"{stored} order by history_id desc limit 1", ana.username)
    assert rows[0]["api_token"]["scopes"] == ["query"]
    assert await read(ana, own(ana)) == ana.username
    rows = await api.database.fetch(f"{stored} order by history_id desc limit 1", ana.username)
    assert rows[0]["api_token"] is None


async def test_read_only_connector_reads_but_never_writes_files(ana: Caller):
    assert await read(ana, own(ana), "frozen") == ana.username
    target = f"file:///user/{ana.username}/new"
    assert (await refusal(ana, f"copy {target} text", "frozen")).startswith("rejected ")


async def test_engines_without_file_support_receive_no_files(ana: Caller):
    assert "got no files" in await refusal(ana, f"from {own(ana)}", "blind")


async def test_samples_read_files_with_the_callers_rights_and_never_write(api: Api, ana: Caller, bob: Caller):
    shelf = api.shelf
    assert isinstance(shelf, FakeCatalogEngine)
    shelf.give_files()
    shelf.sample = f"from {own(ana)}"
    sample = await ana.post_ok("editor/sample/shop/items", snippet=json.dumps({"type": "shelf"}))
    assert sample["rows"] == [[ana.username]]
    refused = await bob.post("editor/sample/shop/items", snippet=json.dumps({"type": "shelf"}))
    assert f"{own(ana)}: " in refused.json()["message"]
    assert "belongs to another user" in refused.json()["message"]
    shelf.sample = f"copy file:///user/{ana.username}/new text"
    refused = await ana.post("editor/sample/shop/items", snippet=json.dumps({"type": "shelf"}))
    assert "read-only" in refused.text


@pytest.mark.item(98)
async def test_audit_log_names_opened_and_denied_files(ana: Caller, bob: Caller, audited: list[dict[str, Any]]):
    audited.clear()
    operation = (await ana.run("lake", f"from {own(ana)}"))["history_uuid"]
    denied = (await ana.run("lake", f"from {own(bob)}"))["history_uuid"]
    target = f"file:///user/{ana.username}/new"
    written = (await ana.run("lake", f"copy {target} text"))["history_uuid"]
    found = [event for event in audited if event["operation"].startswith("statement.") and "path" in event]
    assert [
        (event["operation"], event["user"], event["path"], event["outcome"], event["operation_id"]) for event in found
    ] == [
        ("statement.read", ana.username, own(ana), "ok", operation),
        ("statement.read", ana.username, own(bob), "permission_denied", denied),
        ("statement.write", ana.username, target, "ok", written),
    ]


async def test_write_records_are_deleted_with_the_write(api: Api, ana: Caller):
    target = f"file:///user/{ana.username}/new"
    assert (await ana.run("lake", f"copy {target} text"))["status"] == 0
    unfinished = "select count(*) from unfinished_writes where directory = $1"
    assert await api.database.value(unfinished, f"user/{ana.username}") == 0
    listed = await ana.get("storage/list", path=f"file:///user/{ana.username}")
    assert [entry["name"] for entry in listed.json()["files"]] == ["new", "own"]
