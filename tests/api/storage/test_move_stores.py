"""Moves and copies over a real object store (Contract storage 7.4, 7.5)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.engines.versitygw import S3Address

pytestmark = pytest.mark.engine("s3")

FILES = {f"sub{number % 3}/{number}": bytes([number]) * (number * 4096) for number in range(40)}


@pytest.fixture
async def ana(s3_server: S3Address, tmp_path: Path, shared_database_dsn: str) -> AsyncIterator[Caller]:
    """A user of a local root and of an S3 store with the bucket `moving`."""
    account = {
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
        "endpoint": s3_server.url,
        "region": s3_server.region,
        "path_style": True,
        "is_secure": False,
    }
    tables = {"aws": {"aws_accounts": {"default": account}}}
    settings = storage_settings(tmp_path, shared_database_dsn, tables=tables, allow_bucket_creation=True)
    async with open_api(settings) as api:
        admin, user = await api.user("admin"), await api.user("ana")
        assert (await admin.post("storage/mkdir", path="s3a://moving")).status_code in {201, 409}
        yield user


def local_tree(root: Path) -> None:
    for name, content in FILES.items():
        place = root / "shared" / "tree" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    (root / "shared" / "tree" / "empty").mkdir()


async def sizes(caller: Caller, path: str) -> dict[str, int | None]:
    """Size of every file below a path, None for directories."""
    found: dict[str, int | None] = {}
    pending = [path]
    while pending:
        directory = pending.pop()
        listed = (await caller.get("storage/list", path=directory, pagesize=1000)).json()
        for entry in listed["files"]:
            is_directory = entry["type"] == "dir"
            found[entry["path"].removeprefix(f"{path}/")] = None if is_directory else entry["size"]
            pending += [entry["path"]] if is_directory else []
    return found


@pytest.mark.storage(69, 65)
async def test_a_tree_goes_to_the_store_moves_there_and_comes_back(ana: Caller, tmp_path: Path) -> None:
    root = tmp_path / "files"
    local_tree(root)
    expected = {name: len(content) for name, content in FILES.items()}
    expected |= {"sub0": None, "sub1": None, "sub2": None, "empty": None}
    base = f"s3a://moving/{ana.username}"
    assert (await ana.post("storage/mkdir", path=base)).status_code == 201

    out = await ana.post("storage/move", src_path="file:///shared/tree", dest_path=base)
    assert (out.status_code, out.json()["path"]) == (200, f"{base}/tree"), out.text
    assert not (root / "shared" / "tree").exists()
    assert await sizes(ana, f"{base}/tree") == expected

    renamed = await ana.post("storage/rename", src_path=f"{base}/tree/", dest_path="other")
    assert (renamed.status_code, renamed.json()["path"]) == (200, f"{base}/other"), renamed.text
    assert (await ana.get("storage/stat", path=f"{base}/tree")).status_code == 404
    assert await sizes(ana, f"{base}/other") == expected

    copied = await ana.post("storage/copy", src_path=f"{base}/other", dest_path=f"{base}/copy")
    assert copied.status_code == 200, copied.text
    assert await sizes(ana, f"{base}/copy") == await sizes(ana, f"{base}/other")

    back = await ana.post("storage/move", src_path=f"{base}/other", dest_path="file:///shared/tree")
    assert back.status_code == 200, back.text
    there = {name: (root / "shared" / "tree" / name).read_bytes() for name in FILES}
    assert there == FILES
    assert (root / "shared" / "tree" / "empty").is_dir()
    assert (await ana.get("storage/stat", path=f"{base}/other")).status_code == 404
