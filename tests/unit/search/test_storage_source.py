"""The search sources `hdfs` and `s3`: the entries that a walk finds, and its time limit (Contract platform 8.4)."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from tests.fakes.storage import LIKE_HDFS, LIKE_S3, MemoryFileSystem

from queryserver.errors.base import InsufficientScope, PermissionDenied
from queryserver.errors.statements import SourceNotConfigured
from queryserver.files.access import Stores
from queryserver.files.model import EntryKind, PathReader, Scheme, StorageUser
from queryserver.files.protocol import Batch, Storage, StorageTraits
from queryserver.identity.model import ApiTokenLimits, Scope, User
from queryserver.platform.settings.sections import SearchSettings
from queryserver.search.model import FacetName, Search, SourceAnswer
from queryserver.search.query_language import parse_query
from queryserver.search.search import limit_s
from queryserver.search.sources import StorageSource

pytestmark = pytest.mark.platform(96)

ANA = User(4, "ana", rights=frozenset({"filebrowser.s3_access", "metadata"}))


def bounds(max_entries: int, max_dirs: int, max_seconds: float) -> SearchSettings:
    """Return search settings. Validation is skipped, so that limits may be fractions of a second."""
    return SearchSettings.model_construct(max_entries=max_entries, max_dirs=max_dirs, max_seconds=max_seconds)


BOUNDS = bounds(5000, 50, 30)
S3 = StorageTraits(lists_in_order=True, container_levels=1)
NOW = datetime(2026, 1, 5, 9, 10, 11, tzinfo=UTC)


def hdfs(*files: str, private: dict[str, str] | None = None) -> MemoryFileSystem:
    made = MemoryFileSystem(Scheme.HDFS, powers=LIKE_HDFS, private=private)
    _fill(made, files)
    return made


def s3(*files: str) -> MemoryFileSystem:
    made = MemoryFileSystem(Scheme.S3A, S3, LIKE_S3, containers=sorted({file.partition("/")[0] for file in files}))
    _fill(made, files)
    return made


def _fill(file_system: MemoryFileSystem, files: Sequence[str]) -> None:
    for file in files:
        file_system.tree.make_container(file.rpartition("/")[0])
        file_system.tree.make_entry(file, EntryKind.FILE)


def stores(*file_systems: MemoryFileSystem) -> Stores:
    schemes = tuple(one.scheme for one in file_systems)
    return Stores(file_systems, PathReader(schemes), {Scheme.S3A: "s3a://lake/user/${USER}"})


async def found(
    file_system: MemoryFileSystem, text: str, within: SearchSettings = BOUNDS, user: User = ANA, **changes
) -> SourceAnswer:
    source = StorageSource(stores(file_system), file_system.scheme, within)
    return await source.search(user, Search(parse_query(text), NOW, limit=100, **changes))


def names(answer: SourceAnswer) -> list[str]:
    return sorted(match.record.original_name for match in answer.matches)


async def test_api_token_needs_the_read_scope_to_search_stores():
    def holding(*scopes: Scope) -> User:
        return ANA.narrowed(ApiTokenLimits(uuid4(), "one", frozenset(scopes), None, b""))

    with pytest.raises(InsufficientScope):
        await found(s3("lake/a"), "a", user=holding(Scope.QUERY))
    assert names(await found(s3("lake/a"), "s3a://lake/a", user=holding(Scope.QUERY, Scope.FILES_READ))) == [
        "s3a://lake/a"
    ]


class TestBeginning:
    async def test_search_without_a_path_starts_at_home(self):
        answer = await found(hdfs("user/ana/sample.csv", "user/bob/sample.csv"), "sample")
        assert names(answer) == ["hdfs:///user/ana/sample.csv"]

    async def test_absolute_path_starts_at_its_longest_directory_and_keeps_its_case(self):
        store = hdfs("Data/In/a.csv", "Data/Inner/b.csv", "Data/Out/c.csv", "data/in/d.csv")
        assert names(await found(store, "/Data/In*")) == [
            "hdfs:///Data/In",
            "hdfs:///Data/In/a.csv",
            "hdfs:///Data/Inner",
            "hdfs:///Data/Inner/b.csv",
        ]

    async def test_path_may_include_its_scheme(self):
        assert names(await found(hdfs("data/a.csv"), "hdfs:///data/*.csv")) == ["hdfs:///data/a.csv"]
        assert names(await found(s3("lake/in/a.csv", "lake/out/b.csv"), "s3a://lake/in*")) == [
            "s3a://lake/in",
            "s3a://lake/in/a.csv",
        ]

    @pytest.mark.parametrize("begin", ["s3://lake/in", "s3n://lake/in", "S3A:///lake/in"])
    async def test_other_spellings_of_a_path_are_equivalent(self, begin: str):
        store = s3("lake/in/a.csv", "lake/out/b.csv")
        assert names(await found(store, f"{begin}*")) == ["s3a://lake/in", "s3a://lake/in/a.csv"]
        assert names(await found(hdfs("data/a.csv"), "hdfs:/data/*.csv")) == ["hdfs:///data/a.csv"]

    async def test_unlistable_bucket_does_not_hide_others(self):
        store = s3("closed/a.csv", "lake/a.csv")
        store.tree.private = {"closed": "bob"}
        answer = await found(store, "s3a://*a.csv")
        assert names(answer) == ["s3a://lake/a.csv"]
        with pytest.raises(PermissionDenied):
            await found(store, "s3a://closed/a")

    async def test_path_of_another_store_is_ignored(self):
        assert names(await found(s3("lake/user/ana/x"), "/data")) == []

    async def test_missing_home_is_empty(self):
        answer = await found(hdfs("data/a.csv"), "a")
        assert (answer.total, answer.truncated, answer.message) == (0, False, "/user/ana does not exist.")

    async def test_start_denied_by_the_store_is_an_error(self):
        with pytest.raises(PermissionDenied):
            await found(hdfs("data/a.csv", private={"data": "bob"}), "/data/a")

    async def test_impossible_path_is_an_ordinary_term(self):
        assert names(await found(hdfs("user/ana/x"), "/../etc/x")) == []


class TestMatching:
    async def test_term_matches_the_name_and_a_term_with_a_slash_the_whole_path(self):
        store = hdfs("user/ana/sales/report.csv", "user/ana/sales.txt")
        assert names(await found(store, "sales")) == ["hdfs:///user/ana/sales", "hdfs:///user/ana/sales.txt"]
        assert names(await found(store, "sales/rep")) == ["hdfs:///user/ana/sales/report.csv"]

    async def test_filters_compare_whole_values(self):
        store = hdfs("user/ana/sales/report.csv")
        assert names(await found(store, "type:directory")) == ["hdfs:///user/ana/sales"]
        assert names(await found(store, "type:direct")) == []
        assert names(await found(store, "source:hdfs type:file")) == ["hdfs:///user/ana/sales/report.csv"]
        for nothing in ("tag:x", "db:web", "table:web", "source:s3"):
            assert names(await found(store, nothing)) == []

    async def test_buckets_are_found_from_the_root(self):
        answer = await found(s3("lake/a.csv", "shop/lake.csv"), "s3a://la*")
        assert sorted((match.record.type, match.record.original_name) for match in answer.matches) == [
            ("FILE", "s3a://lake/a.csv"),
            ("S3BUCKET", "s3a://lake"),
        ]

    async def test_key_folders_are_found_once_even_without_a_marker(self):
        store = s3("lake/user/ana/in/sub/a.csv", "lake/user/ana/in/sub/b.csv")
        store.tree.make_container("lake/user/ana/empty")
        assert names(await found(store, "type:DIRECTORY")) == [
            "s3a://lake/user/ana/empty",
            "s3a://lake/user/ana/in",
            "s3a://lake/user/ana/in/sub",
        ]

    async def test_facets_count_all_matches(self):
        files = [f"user/ana/sample_{number}" for number in range(30)]
        source = StorageSource(stores(hdfs(*files)), Scheme.HDFS, BOUNDS)
        answer = await source.search(
            ANA, Search(parse_query("sample"), NOW, limit=10, facets=frozenset({FacetName.TYPE}))
        )
        assert (len(answer.matches), answer.total, answer.facets) == (10, 30, {FacetName.TYPE: {"FILE": 30}})


class TestBounds:
    @pytest.mark.parametrize("make", [hdfs, s3])
    async def test_examined_entries_are_limited(self, make):
        store = make(*(f"lake/user/ana/{number:03}" for number in range(100)))
        path = "/lake/user/ana/" if make is hdfs else "s3a://lake/user/ana/"
        answer = await found(store, path, bounds(40, 50, 30))
        assert (answer.total, answer.truncated) == (40, True)
        assert answer.message.startswith(f"The search started in {path.rstrip('/')} and did not cover")
        exact = await found(store, path, bounds(100, 50, 30))
        assert (exact.total, exact.truncated, exact.message) == (100, False, "")

    async def test_listed_directories_are_limited(self):
        store = hdfs(*(f"data/{number:03}/file" for number in range(20)))
        answer = await found(store, "/data/ file", bounds(5000, 11, 30))
        assert (answer.total, answer.truncated) == (10, True)
        assert not (await found(store, "/data/ file", bounds(5000, 21, 30))).truncated

    async def test_listed_key_pages_are_limited(self):
        store = s3(*(f"lake/{number:05}" for number in range(3000)))
        assert (await found(store, "s3a://lake/", bounds(5000, 2, 30))).total == 2000
        assert not (await found(store, "s3a://lake/", bounds(5000, 3, 30))).truncated

    async def test_matches_found_in_time_are_returned(self):
        class Slow(MemoryFileSystem):
            def as_user(self, user: StorageUser) -> Storage:
                storage = super().as_user(user)
                quick = storage.list_directory

                async def slow(path: str, **options) -> AsyncGenerator[Batch]:
                    if path != "data":
                        await asyncio.sleep(60)
                    async for batch in quick(path, **options):
                        yield batch

                storage.list_directory = slow
                return storage

        store = Slow(Scheme.HDFS, powers=LIKE_HDFS)
        _fill(store, ["data/a/x", "data/b/x"])
        answer = await found(store, "/data/", bounds(5000, 50, 3))
        assert (names(answer), answer.truncated) == (["hdfs:///data/a", "hdfs:///data/b"], True)

    async def test_unlistable_directories_are_skipped(self):
        store = hdfs("data/a/x", "data/b/x", private={"data/a/x": "bob", "data/b": "bob"})
        assert names(await found(store, "/data/ x")) == ["hdfs:///data/a/x"]


class TestRights:
    async def test_files_require_the_metadata_right(self):
        with pytest.raises(PermissionDenied):
            await found(hdfs("data/a"), "/data/a", user=User(5, "bob"))

    async def test_s3_requires_its_right(self):
        with pytest.raises(PermissionDenied):
            await found(s3("lake/a"), "s3a://lake/", user=User(5, "bob", rights=frozenset({"metadata"})))

    async def test_missing_store_is_not_configured(self):
        source = StorageSource(stores(hdfs()), Scheme.S3A, BOUNDS)
        with pytest.raises(SourceNotConfigured, match=r"^Not configured\.$"):
            await source.search(ANA, Search(parse_query("x"), NOW))


class Plain:
    """A source that declares no time limit."""

    async def search(self, user: User, search: Search) -> SourceAnswer:
        del user, search
        return SourceAnswer()


def walk(max_seconds: float) -> StorageSource:
    stores = Stores((), PathReader((Scheme.HDFS,)), {})
    return StorageSource(stores, Scheme.HDFS, bounds(1, 1, max_seconds))


def test_source_timeout_exceeds_the_time_limit_of_the_walk() -> None:
    """The walk must reach its own time limit first, so that the matches found until then are returned."""
    for seconds in (3, 25, 30, 31, 600):
        assert limit_s(walk(seconds)) >= seconds + 5


def test_other_sources_have_half_a_minute() -> None:
    assert limit_s(Plain()) == limit_s(walk(3)) == 30
