"""A server is killed during a copy or move, and the next server takes the transfer over (Contract storage 7.5)."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.installation import Installation, Node, eventually, installed, query
from tests.engines.store_tables import s3_tables
from tests.engines.versitygw import S3Address
from tests.fixtures.database import execute

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Every ten seconds, servers search for transfers whose server has exited.
TAKEN_OVER_WITHIN_S = 60


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    (tmp_path / "files" / "shared").mkdir(parents=True)
    async with installed(postgres, migrated_template, tmp_path, {}) as place:
        yield place


def make_tree(directory: Path, files: int) -> dict[str, bytes]:
    for number in range(files):
        file = directory / f"sub{number % 5}" / str(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(str(number).encode() * 100)
    (directory / "empty").mkdir()
    return files_below(directory)


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(entry.relative_to(directory)): entry.read_bytes() for entry in directory.rglob("*") if entry.is_file()}


async def begin(node: Node, call: str, source: str, target: str) -> str:
    """Start a copy or move without waiting for its end; return the operation id."""
    started = await node.post(f"storage/{call}?wait=0", src_path=source, dest_path=target)
    assert started.status_code == 202, started.text
    return started.json()["operation_id"]


async def operation_body(node: Node, operation: str) -> dict[str, Any]:
    answer = await node.http.get("/api/v1/storage/operation", params={"id": operation}, headers=node.headers())
    assert answer.status_code == 200, answer.text
    return answer.json()


async def settled(node: Node, place: Installation, operation: str) -> dict[str, Any]:
    """Let the killed server's last heartbeat become too old, and wait for the operation's end. Returns the body of the
    operation.
    """
    killed = "select owner from storage_transfers union select owner from storage_operations"
    await execute(
        place.database_dsn, f"update instances set alive_until = now() - interval '1 second' where id in ({killed})"
    )

    async def has_ended() -> bool:
        return (await operation_body(node, operation))["state"] != "running"

    await eventually(has_ended, within_s=TAKEN_OVER_WITHIN_S)
    return await operation_body(node, operation)


@pytest.mark.storage(65)
async def test_kill_while_copying_leaves_nothing_at_target(place: Installation) -> None:
    shared, root = place.directory / "files" / "shared", str(place.directory / "files")
    before = make_tree(shared / "tree", 1500)
    source, target = "file:///shared/tree", "file:///shared/copy"
    async with place.server(FILEBROWSER__LOCAL_ROOT=root) as victim:
        operation = await begin(victim, "copy", source, target)

        async def has_copied_some() -> bool:
            return any((shared / "copy").rglob("[0-9]*"))

        await victim.process.kill9_in(has_copied_some)
    assert 0 < len(files_below(shared / "copy")) < len(before)
    for entry in (shared / "copy").rglob("._qs_*"):
        # A partially written file counts as abandoned if it has not changed for a minute.
        os.utime(entry, (time.time() - 120,) * 2)
    async with place.server(FILEBROWSER__LOCAL_ROOT=root) as heir:
        body = await settled(heir, place, operation)
        assert (body["state"], body["result"]["details"]) == ("failed", {"rolled_back": True})
        assert not (shared / "copy").exists()
        assert files_below(shared / "tree") == before
        again = await heir.post("storage/copy", src_path=source, dest_path=target)
        assert again.status_code == 200, again.text
    assert files_below(shared / "copy") == before
    assert (shared / "copy" / "empty").is_dir()


@pytest.mark.engine("s3")
@pytest.mark.storage(66)
@pytest.mark.storage(69)
async def test_kill_while_deleting_is_completed_by_next_server(place: Installation, s3_server: S3Address) -> None:
    shared, root = place.directory / "files" / "shared", str(place.directory / "files")
    before = make_tree(shared / "tree", 400)
    place.add_tables(s3_tables(s3_server))
    environment = {"FILEBROWSER__LOCAL_ROOT": root, "FILEBROWSER__ALLOW_BUCKET_CREATION": "true"}
    async with place.server(**environment) as victim:
        made = await victim.http.post("/api/v1/storage/mkdir", data={"path": "s3a://killed"}, headers=victim.headers())
        assert made.status_code in {201, 409}, made.text
        operation = await begin(victim, "move", "file:///shared/tree", "s3a://killed/tree")
        give_up = time.monotonic() + 120
        while await query(place.database_dsn, "select state from storage_transfers") != "deleting":
            assert time.monotonic() < give_up
        await victim.process.kill9()
    left = len(files_below(shared / "tree"))
    assert 0 < left <= len(before)
    async with place.server(**environment) as heir:
        body = await settled(heir, place, operation)
        assert (body["state"], body["result"]["path"]) == ("done", "s3a://killed/tree"), body
        assert not (shared / "tree").exists()
        back = await heir.post("storage/copy", src_path="s3a://killed/tree", dest_path="file:///shared/back")
        assert back.status_code == 200, back.text
    assert files_below(shared / "back") == before
    assert (shared / "back" / "empty").is_dir()
