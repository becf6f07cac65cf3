"""Glob patterns: their matches, compared with DuckDB's on the same files, and the directories that are listed."""

import asyncio
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from tests.fakes.storage import LIKE_LOCAL, LIKE_S3, MemoryFileSystem
from tests.fakes.storage_faults import FaultyStorage
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied
from queryserver.files import globs
from queryserver.files.globs import GlobSearch, Pattern
from queryserver.files.model import EntryKind, Scheme, StorageUser
from queryserver.files.protocol import Storage, StorageTraits

FILES = (
    "top.csv", "a/x.csv", "a/X.csv", "a/_hidden.csv", "a/.dot.csv", "a/sub/s.csv", "a/sub/deep/d.csv", "b/y.csv",
    "_h/z.csv", ".dot/q.csv", "c/^.csv", "c/!.csv", "c/{a}.csv", "c/s*r.csv", "c/s1r.csv", "c/a.csv", "c/b.csv",
    "c/]-.csv", "t/year=2024/month=1/p.parquet", "t/year=2024/month=2/p.parquet", "t/year=2025/month=1/p.parquet",
    "日本語/é.csv", "a b/c d.csv", "a/sub.csv/inner.csv",
)  # fmt: skip


def memory(*, like_s3: bool = False) -> MemoryFileSystem:
    """Return a store that contains the test files below the directory or bucket `lake`."""
    traits = StorageTraits(container_levels=1, lists_in_order=True) if like_s3 else StorageTraits()
    powers = LIKE_S3 if like_s3 else LIKE_LOCAL
    file_system = MemoryFileSystem(Scheme.S3A if like_s3 else Scheme.FILE, traits, powers, containers=["lake"])
    for file in FILES:
        file_system.tree.make_container(f"lake/{file}".rpartition("/")[0])
        file_system.tree.put(f"lake/{file}", b"x")
    return file_system


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("lake")
    for file in FILES:
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        (top / file).write_bytes(b"x")
    return top


async def matches(storage: Storage, pattern: str, *, levels: int = 0, max_scanned: int = 1_000_000) -> list[str]:
    search = GlobSearch(storage, Pattern(f"lake/{pattern}".split("/")), levels, max_scanned)
    return sorted(status.path.removeprefix("lake/") for status in await search.run())


@pytest.mark.item(96)
@pytest.mark.parametrize("pattern", [
    "*", "*.csv", "*/*.csv", "**", "**/*.csv", "a/**", "a/**/x.csv", "**/s.csv", "a/*", "c/[!a].csv",
    "c/[^a].csv", "c/[a-b].csv", "c/{a,b}.csv", "{a,b}/*.csv", "c/{a}.csv", "c/s*r.csv", "c/s[*]r.csv", "c/[]]-.csv",
    "a/nope.csv", "nope/*.csv", "a/x.csv", "A/*.csv", "**a/*.csv", "a/**x.csv", "?/*.csv", "??/*.csv", "*/sub/*.csv",
    "t/*/month=1/*.parquet", "t/year=2024/**/*.parquet", "t/**/month=2/*", "日*/*.csv", "a */c d.*", "[", "c/[",
    "*/sub.csv/*", ".*/*", "**/.*", "t/year=202[!5]/*/p.parquet"])  # fmt: skip
@pytest.mark.parametrize("like_s3", [False, True])
async def test_patterns_match_as_in_duckdb(on_disk: Path, pattern: str, *, like_s3: bool):
    file_system = memory(like_s3=like_s3)
    storage = file_system.as_user(StorageUser("ana"))
    found = duckdb.execute("SELECT file FROM glob(?)", [f"{on_disk}/{pattern}"]).fetchall()
    expected = sorted(file.removeprefix(f"{on_disk}/") for (file,) in found)
    assert await matches(storage, pattern, levels=int(like_s3)) == expected


async def test_question_mark_matches_a_character_where_duckdb_matches_a_byte():
    assert await matches(memory().as_user(StorageUser("ana")), "???/?.csv") == ["日本語/é.csv"]


async def test_directories_do_not_match():
    storage = memory().as_user(StorageUser("ana"))
    assert await matches(storage, "a/sub.csv") == await matches(storage, "*/sub.csv") == []
    assert await matches(storage, "a/*.csv") == ["a/.dot.csv", "a/X.csv", "a/_hidden.csv", "a/x.csv"]


async def test_repeated_double_stars_match_like_one():
    storage = memory().as_user(StorageUser("ana"))
    assert await matches(storage, "**/**/*.csv") == await matches(storage, "**/*.csv")
    assert await matches(storage, "**/year=2024/**/p.parquet") == await matches(storage, "t/year=2024/*/p.parquet")


class Listed(FaultyStorage):
    """A storage that records which directories are listed."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.paths = Counter[str]()

    def list_directory(self, path: str, *, cursor: str | None = None, batch_size: int = 1000):
        self.paths[path] += 1
        return super().list_directory(path, cursor=cursor, batch_size=batch_size)


@pytest.mark.parametrize(("pattern", "listed"),
    [("a/x.csv", []), ("a/*.csv", ["lake/a"]), ("t/year=2024/month=*/p.parquet", ["lake/t/year=2024"]),
    ("t/*/month=1/p.parquet", ["lake/t"]), ("*/x.csv", ["lake"]),
    ("t/year=*/month=*/*", ["lake/t", "lake/t/year=2024", "lake/t/year=2025", "lake/t/year=2024/month=1",
        "lake/t/year=2024/month=2", "lake/t/year=2025/month=1"])])  # fmt: skip
async def test_only_directories_with_possible_matches_are_listed_once(pattern: str, listed: list[str]):
    storage = Listed(memory().as_user(StorageUser("ana")))
    await matches(storage, pattern)
    assert storage.paths == Counter(listed)


async def test_flat_key_store_lists_a_tree_instead_of_directories():
    class Trees(Listed):
        def list_tree(self, path: str):
            self.calls[f"tree {path}"] += 1
            inner = memory(like_s3=True).as_user(StorageUser("ana"))
            return inner.list_tree(path)  # pyright: ignore[reportAttributeAccessIssue] this store implements it

    storage = Trees(memory(like_s3=True).as_user(StorageUser("ana")))
    assert len(await matches(storage, "t/**/*.parquet", levels=1)) == 3
    assert storage.paths == Counter()
    assert storage.calls == Counter({"tree lake/t": 1})


async def test_links_are_skipped_and_a_path_through_a_link_is_rejected():
    file_system = memory()
    file_system.tree.make_entry("lake/link", EntryKind.LINK)
    storage = file_system.as_user(StorageUser("ana"))
    assert "link" not in await matches(storage, "**")
    assert await matches(storage, "*/x.csv") == ["a/x.csv"]
    with raises_code("symlink_not_followed"):
        await matches(storage, "link/*.csv")


async def test_unlistable_directory_fails_the_pattern():
    storage = FaultyStorage(memory().as_user(StorageUser("ana")))
    storage.failures["list_directory"] = lambda _, path: PermissionDenied("no") if path == "lake/b" else None
    with pytest.raises(PermissionDenied):
        await matches(storage, "*/*.csv")
    assert await matches(storage, "a/*/*.csv") == ["a/sub.csv/inner.csv", "a/sub/s.csv"]


async def test_too_many_entries_or_matches_stop_the_search(monkeypatch: pytest.MonkeyPatch):
    storage = memory().as_user(StorageUser("ana"))
    with raises_code("too_many_entries"):
        await matches(storage, "**/*.nope", max_scanned=len(FILES))
    monkeypatch.setattr(globs, "MAX_FOUND", 3)
    assert len(await matches(storage, "t/**")) == 3
    with raises_code("too_many_entries"):
        await matches(storage, "c/*")


async def test_directories_are_listed_concurrently_and_cancellation_leaves_no_task():
    together = most = 0

    class Slow(FaultyStorage):
        async def list_directory(self, path: str, *, cursor: str | None = None, batch_size: int = 1000):
            nonlocal together, most
            together += 1
            most = max(most, together)
            try:
                await asyncio.sleep(0.01)
                async for batch in super().list_directory(path, cursor=cursor, batch_size=batch_size):
                    yield batch
            finally:
                together -= 1

    storage = Slow(memory().as_user(StorageUser("ana")))
    await matches(storage, "*/*")
    assert 2 <= most <= 8
    search = asyncio.create_task(matches(storage, "*/*/*"))
    await asyncio.sleep(0.015)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert together == 0
