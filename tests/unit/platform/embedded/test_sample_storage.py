"""The embedded mode has a store from the first start on, made once."""

import csv
import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.contract.storage_basis import content, entries, put

from queryserver.files.model import StorageUser
from queryserver.files.stores.local.storage import LocalFileSystem
from queryserver.platform.embedded.cluster import EmbeddedDefaults
from queryserver.platform.embedded.postgres import with_defaults
from queryserver.platform.embedded.sample import ORDERS, REQUESTS, SAMPLES, ensure_sample_storage, sample_tables
from queryserver.platform.settings.tree import Settings


@pytest.fixture
def files(tmp_path: Path) -> Path:
    ensure_sample_storage(tmp_path / "files", sample_tables())
    return tmp_path / "files"


def test_the_files_hold_the_rows_of_the_sample(files: Path):
    samples = files / SAMPLES
    with (samples / "orders.csv").open(encoding="utf-8", newline="") as stream:
        orders = list(csv.DictReader(stream))
    assert len(orders) == ORDERS
    assert {order["note"] for order in orders} >= {"", 'ring twice, say "hello"', "fragile; ünïcode, ok?"}
    requests = gzip.decompress((samples / "web_requests.csv.gz").read_bytes()).decode().splitlines()
    assert len(requests) == REQUESTS + 1
    items = next(table for table in sample_tables() if table.name == "order_items")
    stored = pq.read_table(samples / "order_items.parquet")
    assert stored.column_names == list(items.column_names)
    assert [tuple(row.values()) for row in stored.to_pylist()] == list(items.rows)


def test_the_files_are_the_same_on_every_machine(files: Path, tmp_path: Path):
    ensure_sample_storage(tmp_path / "again", sample_tables())
    for file in (files / SAMPLES).iterdir():
        assert file.read_bytes() == (tmp_path / "again" / SAMPLES / file.name).read_bytes()


def test_what_users_changed_stays(files: Path):
    (files / SAMPLES / "orders.csv").unlink()
    (files / SAMPLES / "products.csv").write_text("mine")
    ensure_sample_storage(files, sample_tables())
    assert not (files / SAMPLES / "orders.csv").exists()
    assert (files / SAMPLES / "products.csv").read_text() == "mine"


def test_what_a_killed_start_left_is_made_anew(tmp_path: Path):
    (tmp_path / "files.unfinished" / "shared").mkdir(parents=True)
    (tmp_path / "files.unfinished" / "half a file").touch()
    ensure_sample_storage(tmp_path / "files", sample_tables())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["shared"]


async def test_every_user_browses_and_changes_the_samples(files: Path):
    file_system = LocalFileSystem(files)
    alice = file_system.as_user(StorageUser("alice"))
    found = {entry.name: entry for entry in await entries(alice, SAMPLES)}
    assert {"README.txt", "customers.csv", "order_items.parquet", "web_requests.csv.gz"} <= set(found)
    assert sum(entry.size_bytes for entry in found.values()) < 1_500_000
    assert (await content(alice, f"{SAMPLES}/customers.csv", length=8)) == b"id,name,"
    await put(alice, f"{SAMPLES}/mine.csv")
    await file_system.close()


def test_the_local_root_of_the_embedded_mode_is_a_default(tmp_path: Path):
    defaults = EmbeddedDefaults("postgresql://", "postgresql://", tmp_path / "databases", tmp_path / "files")
    assert with_defaults(Settings(), defaults).filebrowser.local_root == tmp_path / "files"
    given = Settings.model_validate({"filebrowser": {"local_root": str(tmp_path)}})
    assert with_defaults(given, defaults).filebrowser.local_root == tmp_path
