"""Searches in files, external catalogs and index records (Contract platform 8.4, 8.5)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.search.conftest import CALL, browse, described, found, stock
from tests.api.storage.conftest import storage_settings
from tests.engines.scripted_atlas import PASSWORD, USER, Fault, entity, scripted_atlas
from tests.fakes.storage import LIKE_HDFS, LIKE_S3, MemoryFileSystem
from tests.fakes.storage_faults import FaultyFileSystem
from tests.timing import until
from tests.unit.search.late_atlas import late_atlas

from queryserver.errors.base import Conflict
from queryserver.errors.files import StorageUnavailable
from queryserver.files.model import EntryKind, Scheme, StorageUser
from queryserver.files.protocol import Storage, StorageTraits
from queryserver.search.model import DATABASE, TABLE, IndexedColumn, IndexedObject, Scope, ScopeKey
from queryserver.search.repository import MetadataIndexRecords

T = TypeVar("T")
Make = Callable[..., MemoryFileSystem]

KEYS = {
    "originalName", "name", "selectionName", "hue_name", "hue_description", "description", "originalDescription",
    "type", "sourceType", "parentPath", "owner", "tags", "identity", "created", "lastModified", "connector", "dialect",
    "properties", "customProperties", "link", "doc_type", "uuid", "parentUuid", "last_modified",
}  # fmt: skip


def hdfs(*files: str) -> MemoryFileSystem:
    made = MemoryFileSystem(Scheme.HDFS, StorageTraits(lists_in_order=True, acts_as_user=True), LIKE_HDFS)
    _fill(made, files)
    return made


def s3(*files: str) -> MemoryFileSystem:
    traits = StorageTraits(lists_in_order=True, container_levels=1)
    made = MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=sorted({file.partition("/")[0] for file in files}))
    _fill(made, files)
    return made


def _fill(file_system: MemoryFileSystem, files: tuple[str, ...]) -> None:
    for file in files:
        file_system.tree.make_container(file.rpartition("/")[0])
        file_system.tree.make_entry(file, EntryKind.FILE)


_LATE_S = 2.0


class Late(MemoryFileSystem):
    """A store whose listings succeed after two seconds.

    If a caller gives up earlier, its own limit must be the reason. Therefore tests need not measure time.
    """

    def as_user(self, user: StorageUser) -> Storage:
        storage = super().as_user(user)
        for name in ("list_directory", "list_tree"):
            if hasattr(storage, name):
                vars(storage)[name] = _late(getattr(storage, name))
        return storage


def _late(listing: Callable[..., AsyncIterator[T]]) -> Callable[..., AsyncIterator[T]]:
    async def late(path: str, **options: Any) -> AsyncGenerator[T]:
        await asyncio.sleep(_LATE_S)
        async for one in listing(path, **options):
            yield one

    return late


@asynccontextmanager
async def opened(
    directory: Path,
    dsn: str,
    *stores: MemoryFileSystem | FaultyFileSystem,
    metadata: Mapping[str, Any] | None = None,
    desktop: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Api]:
    settings = storage_settings(directory, dsn, tables={"metadata": metadata or {}}, desktop=desktop)
    builders = {store.scheme: lambda _, store=store: store for store in stores}
    async with open_api(settings, stores=builders) as api:
        yield api


class TestFiles:
    @pytest.mark.platform(96)
    async def test_hdfs_and_s3_files_appear_in_one_list(self, tmp_path: Path, database_dsn: str):
        stores = hdfs("data/in/sample.csv"), s3("lake/in/sample.csv", "lake/out/other.csv")
        async with opened(tmp_path, database_dsn, *stores) as api:
            ana = await api.user("ana")
            one = await ana.post_ok(CALL, query_s='"/data/ sample"', sources='["hdfs"]')
            (record,) = one["results"]
            assert set(record) >= KEYS
            seen = (record["originalName"], record["type"], record["sourceType"], record["parentPath"])
            assert seen == ("hdfs:///data/in/sample.csv", "FILE", "HDFS", "/data/in")
            assert record["hue_name"] == "hdfs://<em>/data/</em>in/<em>sample</em>.csv"
            assert one["sources"] == {"hdfs": {"ok": True, "matched": 1, "truncated": False, "message": ""}}
            two = await ana.post_ok(CALL, query_s="s3a://lake/in*", sources='["s3a"]', field_facets='["type"]')
            # A prefix has no modification time. Entries with a known time precede it.
            assert [found["originalName"] for found in two["results"]] == ["s3a://lake/in/sample.csv", "s3a://lake/in"]
            assert two["facets"] == {"type": {"DIRECTORY": 1, "FILE": 1}}

    @pytest.mark.platform(96)
    async def test_reached_limit_is_reported_with_the_start_of_the_search(self, tmp_path: Path, database_dsn: str):
        store = hdfs(*(f"data/{number:03}" for number in range(60)))
        metadata = {"search": {"max_entries": 40}}
        async with opened(tmp_path, database_dsn, store, metadata=metadata) as api:
            ana = await api.user("ana")
            body = await ana.post_ok(CALL, query_s="/data/", sources='["hdfs"]')
            report = body["sources"]["hdfs"]
            assert (report["ok"], report["matched"], report["truncated"]) == (True, 40, True)
            assert "/data" in report["message"]

    @pytest.mark.platform(96)
    @pytest.mark.parametrize(("make", "source", "path"), [(hdfs, "hdfs", "/lake/"), (s3, "s3", "s3a://lake/")])
    @pytest.mark.parametrize(("max_seconds", "matched"), [(1, 0), (60, 1)])
    async def test_search_ends_within_the_configured_seconds(
        self, tmp_path: Path, database_dsn: str, make: Make, source: str, path: str, max_seconds: int, matched: int
    ):
        """The store needs two seconds, which is more than the limit of one second and less than the limit of one
        minute.
        """
        store = make("lake/x")
        store.__class__ = Late
        async with opened(tmp_path, database_dsn, store, metadata={"search": {"max_seconds": max_seconds}}) as api:
            body = await (await api.user("ana")).post_ok(CALL, query_s=path, sources=f'["{source}"]')
            report = body["sources"][source]
            assert (report["ok"], report["matched"], report["truncated"]) == (True, matched, not matched)
            assert (path.rstrip("/") in report["message"]) is not matched

    @pytest.mark.platform(90)
    async def test_failing_store_does_not_affect_other_stores(self, tmp_path: Path, database_dsn: str):
        store = FaultyFileSystem(hdfs("user/x"))
        store.failures["list_directory"] = lambda *_: StorageUnavailable("The store cannot be reached.")
        async with opened(tmp_path, database_dsn, store, s3("lake/x")) as api:
            ana = await api.user("ana")
            body = await ana.post_ok(CALL, query_s="s3a://lake/x")
            assert body["sources"]["hdfs"]["ok"] is False
            assert body["sources"]["s3"]["matched"] == 1
            alone = await ana.post(CALL, query_s="x", sources='["hdfs"]')
            assert (alone.status_code, alone.json()["code"]) == (503, "catalog_unavailable")

    @pytest.mark.platform(90)
    async def test_unconfigured_store_is_not_a_failure(self, tmp_path: Path, database_dsn: str):
        async with opened(tmp_path, database_dsn) as api:
            body = await (await api.user("ana")).post_ok(CALL, query_s="x", sources='["hdfs", "s3"]')
            assert body["results"] == []
            assert {name: (one["ok"], one["message"]) for name, one in body["sources"].items()} == {
                "hdfs": (False, "Not configured."),
                "s3": (False, "Not configured."),
            }

    async def test_many_results_are_formatted_like_few_results(self, tmp_path: Path, database_dsn: str):
        async with opened(tmp_path, database_dsn, s3(*(f"lake/<{number:03}>" for number in range(120)))) as api:
            body = await (await api.user("ana")).post_ok(CALL, query_s="s3a://lake/<", sources='["s3"]', limit=1000)
            assert body["count"] == 120
            assert {"&lt;" in one["hue_name"] for one in body["results"]} == {True}

    @pytest.mark.platform(94)
    async def test_s3_is_not_searched_without_the_right(self, tmp_path: Path, database_dsn: str):
        async with opened(tmp_path, database_dsn, s3("lake/secret")) as api:
            bob = await api.user("bob")
            await api.database.execute("delete from group_rights where \"right\" = 'filebrowser.s3_access'")
            refused = await bob.post(CALL, query_s="s3a://lake/secret", sources='["s3"]')
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
            assert "secret" not in refused.text.replace("s3a://lake/secret", "")


ENTITIES = [
    entity("hive_table", f"web.sample_{number:02}@cm", owner="ana", tags=["PII"] if number < 3 else [])
    for number in range(35)
]


@pytest.mark.platform(97)
class TestCatalogs:
    async def test_unconfigured_atlas_and_unsupported_catalogs_return_501(self, tmp_path, database_dsn):
        async with opened(tmp_path, database_dsn) as api:
            ana = await api.user("ana")
            for interface, code in (("atlas", "catalog_not_configured"), ("navigator", "catalog_not_supported")):
                refused = await ana.post(CALL, query_s="x", interface=interface)
                assert (refused.status_code, refused.json()["code"]) == (501, code)

    async def test_dummy_catalog_is_empty_and_all_sources_are_ok(self, tmp_path: Path, database_dsn: str):
        async with opened(tmp_path, database_dsn) as api:
            body = await (await api.user("ana")).post_ok(CALL, query_s="x", interface='"dummy"')
            assert (body["results"], body["totalMatched"]) == ([], 0)
            assert set(body["sources"]) == {"documents", "sql", "hdfs", "s3"}
            assert all(one["ok"] for one in body["sources"].values())

    async def test_atlas_results_are_paginated(self, tmp_path: Path, database_dsn: str):
        async with scripted_atlas(ENTITIES, {"PII": 3}) as atlas, atlas_api(tmp_path, database_dsn, atlas.url) as api:
            ana = await api.user("ana")
            seen: list[str] = []
            for offset in (0, 10, 20, 30):
                body = await ana.post_ok(CALL, query_s="sample", sources='["sql"]', offset=offset, limit=10)
                assert body["totalMatched"] == 35
                seen += [record["originalName"] for record in body["results"]]
            assert seen == [f"web.sample_{number:02}" for number in range(35)]
            assert atlas.asked[-1][2]["offset"] == 30
            record = body["results"][0]
            assert set(record) >= KEYS | {
                "internalType", "meanings", "meaningNames", "classifications", "original_name",
            }  # fmt: skip
            assert record["internalType"] == "hive_table"

    async def test_empty_query_lists_all_classifications(self, tmp_path: Path, database_dsn: str):
        tags = {"PII": 3, "Money": 1}
        async with scripted_atlas(ENTITIES, tags) as atlas, atlas_api(tmp_path, database_dsn, atlas.url) as api:
            ana = await api.user("ana")
            for sources in ('["sql"]', "[]"):
                body = await ana.post_ok(CALL, query_s='""', sources=sources, field_facets='["tags"]')
                assert body["facets"] == {"tags": tags}

    async def test_pages_continue_from_one_source_to_the_next(self, tmp_path: Path, database_dsn: str):
        paths = [entity("hdfs_path", f"/data/sample_{number:02}@cm") for number in range(40)]
        async with (
            scripted_atlas([*ENTITIES[:5], *paths]) as atlas,
            atlas_api(tmp_path, database_dsn, atlas.url) as api,
        ):
            ana, seen = await api.user("ana"), list[str]()
            for offset in range(0, 60, 10):
                body = await ana.post_ok(CALL, query_s="sample", sources='["sql", "hdfs"]', offset=offset, limit=10)
                assert body["totalMatched"] == 45
                seen += [record["identity"] for record in body["results"]]
            assert len(seen) == len(set(seen)) == 45

    async def test_documents_are_searched_locally_and_come_first(self, tmp_path: Path, database_dsn: str):
        async with scripted_atlas(ENTITIES) as atlas, atlas_api(tmp_path, database_dsn, atlas.url) as api:
            body = await (await api.user("ana")).post_ok(CALL, query_s="sample", sources='["documents", "sql"]')
            assert body["sources"]["documents"] == {"ok": True, "matched": 0, "truncated": False, "message": ""}
            assert body["sources"]["sql"]["matched"] == 35

    async def test_denied_atlas_login_returns_403_alone_and_a_message_among_other_sources(
        self, tmp_path: Path, database_dsn: str
    ):
        async with scripted_atlas(ENTITIES) as atlas, atlas_api(tmp_path, database_dsn, atlas.url) as api:
            ana = await api.user("ana")
            atlas.faults.append(Fault(401))
            refused = await ana.post(CALL, query_s="sample", sources='["sql"]')
            assert (refused.status_code, refused.json()["code"]) == (403, "catalog_denied")
            atlas.faults.append(Fault(403))
            body = await ana.post_ok(CALL, query_s="sample", sources='["documents", "sql"]')
            assert body["sources"]["sql"]["ok"] is False

    async def test_slow_atlas_is_abandoned_at_the_time_limit(self, tmp_path: Path, database_dsn: str):
        """The timeout is two seconds, but Atlas responds after five seconds."""
        async with (
            late_atlas(ENTITIES, after_s=5) as atlas,
            atlas_api(tmp_path, database_dsn, atlas.url, timeout_s=2) as api,
        ):
            ana = await api.user("ana")
            body = await ana.post_ok(CALL, query_s="sample", sources='["documents", "sql"]')
            assert [body["sources"][name]["ok"] for name in ("documents", "sql")] == [True, False]
            await until(lambda: len(atlas.asked) >= 1)
            asked = len(atlas.asked)
            every = await ana.post_ok(CALL, query_s="sample")
            assert [every["sources"][name]["ok"] for name in ("documents", "sql", "hdfs", "s3")] == [
                True, False, False, False,
            ]  # fmt: skip
            await until(lambda: len(atlas.asked) > asked)
            assert len(atlas.asked) == asked + 1, "nobody is waited for twice"
            alone = await ana.post(CALL, query_s="sample", sources='["sql"]')
            assert (alone.status_code, alone.json()["code"]) == (503, "catalog_unavailable")
            assert PASSWORD not in alone.text

    async def test_malformed_atlas_address_is_not_a_server_error(self, tmp_path: Path, database_dsn: str):
        """The startup check may have accepted the malformed address. It must fail only the sources that use it."""
        async with atlas_api(tmp_path, database_dsn, "http://127.0.0.1:port") as api:
            ana = await api.user("ana")
            body = await ana.post_ok(CALL, query_s="sample", sources='["documents", "sql"]')
            assert [body["sources"][name]["ok"] for name in ("documents", "sql")] == [True, False]
            alone = await ana.post(CALL, query_s="sample", sources='["sql"]')
            assert (alone.status_code, alone.json()["code"]) == (503, "catalog_unavailable")

    @pytest.mark.parametrize("interface", ["", "local"])
    async def test_search_without_a_catalog_is_local(self, tmp_path, database_dsn, interface):
        catalog = {"interface": interface}
        async with opened(tmp_path, database_dsn, hdfs("data/x"), metadata={"catalog": catalog}) as api:
            ana = await api.user("ana")
            for asked in ({}, {"interface": "local"}):
                body = await ana.post_ok(CALL, query_s="/data/x", sources='["hdfs"]', **asked)
                assert [one["originalName"] for one in body["results"]] == ["hdfs:///data/x"]

    @pytest.mark.security("T8")
    async def test_atlas_obeys_the_connectors_blocked_networks(self, tmp_path: Path, database_dsn: str):
        closed = {"connector_policy": {"blocked_networks": ["127.0.0.0/8"]}}
        async with scripted_atlas(ENTITIES) as atlas:
            async with atlas_api(tmp_path, database_dsn, atlas.url, desktop=closed) as api:
                alone = await (await api.user("ana")).post(CALL, query_s="sample", sources='["sql"]')
                assert (alone.status_code, alone.json()["code"]) == (503, "catalog_unavailable")
            assert atlas.asked == []

    async def test_atlas_is_not_searched_without_the_metadata_right(self, tmp_path: Path, database_dsn: str):
        async with scripted_atlas(ENTITIES) as atlas, atlas_api(tmp_path, database_dsn, atlas.url) as api:
            bob = await api.user("bob")
            await api.database.execute("delete from group_rights where \"right\" = 'metadata'")
            refused = await bob.post(CALL, query_s="sample", sources='["sql"]')
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
            assert atlas.asked == []


@asynccontextmanager
async def atlas_api(
    directory: Path, dsn: str, url: str, desktop: Mapping[str, Any] | None = None, *, timeout_s: float = 30
) -> AsyncGenerator[Api]:
    server = {"api_url": url, "server_user": USER, "server_password": PASSWORD}
    catalog = {"interface": "atlas", "timeout_s": timeout_s, **server}
    async with opened(directory, dsn, metadata={"catalog": catalog}, desktop=desktop) as api:
        yield api


KEY = ScopeKey("elsewhere", None, b"address", is_stored=False)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def records(api: Api, ana: Caller) -> MetadataIndexRecords:
    return MetadataIndexRecords(api.database)


def table(name: str, *columns: str, cut: bool = False) -> IndexedObject:
    return IndexedObject(TABLE, "web", name, columns=[IndexedColumn(one) for one in columns], columns_cut=cut)


async def now_of(records: MetadataIndexRecords) -> Scope:
    (scope,) = await records.scopes([KEY])
    return scope


async def completed(
    records: MetadataIndexRecords, *, seen: Sequence[str], unread: Sequence[str] = (), again: bool = False
) -> Scope:
    began = await records.now()
    claim = await records.claim(KEY, owner="me", interval=timedelta(0))
    assert claim is not None
    await records.complete(
        claim, listed={"web": seen} if seen else {}, unread=unread, started_at=began, truncated=False, again=again
    )
    return await now_of(records)


async def test_omitted_tables_are_reported_immediately(records: MetadataIndexRecords) -> None:
    scope = await records.scope(KEY)
    assert await records.put(scope.id, [table("a")], max_tables=1)
    assert not (await now_of(records)).truncated
    assert await records.put(scope.id, [table("a", "id")], max_tables=1)
    assert not (await now_of(records)).truncated
    assert not await records.put(scope.id, [table("b"), IndexedObject(DATABASE, "web", "")], max_tables=1)
    assert (await now_of(records)).truncated
    assert await records.tables_by_database(scope.id) == {"web": 1}
    assert not (await completed(records, seen=["a"])).truncated


async def test_omitted_columns_are_reported_until_all_are_present(records: MetadataIndexRecords) -> None:
    """The columns are reported as omitted even if the remaining columns did not change."""
    scope = await records.scope(KEY)
    await records.put(scope.id, [table("a", "id", "name")], max_tables=9)
    assert not (await completed(records, seen=["a"])).truncated
    await records.put(scope.id, [table("a", "id", "name", cut=True)], max_tables=9)
    assert (await now_of(records)).truncated
    assert (await completed(records, seen=["a"])).truncated
    await records.put(scope.id, [IndexedObject(TABLE, "web", "a", "a list knows no columns")], max_tables=9)
    assert (await completed(records, seen=["a"])).truncated
    await records.put(scope.id, [table("a", "id", "name")], max_tables=9)
    assert not (await completed(records, seen=["a"])).truncated


async def test_rows_of_unread_databases_are_kept(records: MetadataIndexRecords) -> None:
    scope = await records.scope(KEY)
    await records.put(scope.id, [table("a"), table("b"), IndexedObject(TABLE, "shop", "c")], max_tables=9)
    await completed(records, seen=["a"], unread=["shop"])
    assert await records.tables_by_database(scope.id) == {"web": 1, "shop": 1}
    await completed(records, seen=[], unread=["web"])
    assert await records.tables_by_database(scope.id) == {"web": 1}


async def test_scopes_of_one_connector_are_claimed_one_at_a_time(api, records, ana, bob):
    ids = [await api.database.value("select id from users where username_key = $1", one.username) for one in (ana, bob)]
    mine, theirs = (ScopeKey("elsewhere", one, b"address", is_stored=False) for one in ids)
    me = api.services.ownership.id
    claim = await records.claim(mine, owner=me, interval=MINUTE)
    assert claim is not None
    assert await records.claim(theirs, owner="dead", interval=MINUTE) is None
    assert await records.claim(mine, owner=me, interval=MINUTE) is None
    other = ScopeKey("another", ids[1], b"address", is_stored=False)
    assert await records.claim(other, owner="dead", interval=MINUTE) is not None
    await records.give_up(claim, soon=True)
    dead = await records.claim(theirs, owner="dead", interval=MINUTE)
    assert dead is not None
    assert await records.claim(mine, owner=me, interval=MINUTE) is not None, "that process is not alive"
    # The claim is valid until another process claims the same scope.
    await records.require(dead)
    await api.database.execute("update metadata_scopes set lease_until = '-infinity'")
    again = await records.claim(theirs, owner="dead", interval=MINUTE)
    assert again is not None
    assert again.fence == dead.fence + 1
    for call in (records.require(dead), records.put(dead.scope_id, [table("a")], max_tables=9, claim=dead)):
        with pytest.raises(Conflict):
            await call
    await records.give_up(dead, soon=False)
    await records.require(again)


async def test_scope_with_the_lease_of_an_older_program_is_claimed_once_it_expires(api, records):
    scope = await records.scope(KEY)
    old = "update metadata_scopes set lease_owner = 'old-1', lease_until = now() + $2::interval where id = $1"
    await api.database.execute(old, scope.id, MINUTE)
    me = api.services.ownership.id
    assert await records.claim(KEY, owner=me, interval=timedelta(0)) is None
    await api.database.execute(old, scope.id, -MINUTE)
    assert await records.claim(KEY, owner=me, interval=timedelta(0)) is not None
    # What the older program writes next, and how it claims.
    assert await api.database.execute("update metadata_scopes set lease_until = now() where lease_owner = 'old-1'") == 0
    assert await api.database.value("select lease_until >= now() from metadata_scopes where id = $1", scope.id)


async def test_truncation_while_browsing_is_reported_in_the_next_search(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.content["web"]["wide"] = described("web", "wide", *(f"c{number:03}" for number in range(501)))
    await browse(ana, web=["sample_07"])
    assert not (await ana.post_ok(CALL, query_s="", sources='["sql"]'))["sources"]["sql"]["truncated"]
    await browse(ana, web=["wide"])
    assert (await ana.post_ok(CALL, query_s="", sources='["sql"]'))["sources"]["sql"]["truncated"]
    assert len(await found(ana, "web.wide.c4", limit=1000)) == 100


async def test_number_of_databases_is_limited(records: MetadataIndexRecords) -> None:
    """Databases have a limit of their own, separate from that of tables. Otherwise they would accumulate, because a
    refresh that never completes removes none of them.
    """
    scope = await records.scope(KEY)
    a, b, c = [IndexedObject(DATABASE, name, "") for name in "abc"]
    assert await records.put(scope.id, [a, table("t"), b], max_tables=2)
    assert await records.put(scope.id, [table("u"), b], max_tables=2)
    assert not await records.put(scope.id, [c, table("v")], max_tables=2)
    assert (await records.tables_by_database(scope.id)).keys() == {"a", "b", "web"}
    assert (await now_of(records)).truncated


@pytest.mark.parametrize(("seen", "is_due"), [(["t"], False), ([], True)])
async def test_truncated_index_is_read_again_immediately_only_if_rows_were_removed(records, seen, *, is_due):
    """Omitted tables fit into the index only after other rows have been removed."""
    scope = await records.scope(KEY)
    await records.put(scope.id, [table("t")], max_tables=1)
    await completed(records, seen=seen, again=True)
    claimed = await records.claim(KEY, owner="me", interval=timedelta(hours=1))
    assert (claimed is not None) is is_due
