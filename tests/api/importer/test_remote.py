"""Imports of remote files, and the cleanup of uploads (Contract importer 2.8, 3.2, 7.4, 14.1, 14.8; platform 12.2)."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from tests.api.driving import Api, Caller, until
from tests.api.importer.asking import guess, header, names, preview, types
from tests.api.importer.conftest import CONTENT, ImporterOpener, refusal, uploaded
from tests.api.importer.test_uploads import area, files_in, is_found, turn_clock, user_of
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import World, memory_stores, open_world
from tests.fakes.storage_reads import OddFileSystem, Oddity
from tests.fakes.workbook_files import column_xml, workbook_parts, write_package
from tests.refusals import raises_code

from queryserver.errors.files import EntryChanged, PathNotFound, StorageError, StorageUnavailable
from queryserver.files.model import Scheme
from queryserver.identity.repository import AccountRepository

MIB = 1024 * 1024
CSV = b"id,price\n1,1.50\n2,2\n"
REMOTE = {"import_type": "remote"}


@pytest.fixture(scope="module")
async def five_stores(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[World]:
    """An application with a local root and four in-memory stores. Its HDFS store can contain misbehaving files."""
    directory = tmp_path_factory.mktemp("remote-files")
    limit = {"max_local_file_size_upload_limit": 4 * MIB, "upload_dir": directory / "uploads"}
    settings = storage_settings(directory, shared_database_dsn, tables={"importer": limit})
    memory = {**memory_stores(), Scheme.HDFS: OddFileSystem()}
    async with open_world(settings, directory / "files", memory) as opened:
        yield opened


@pytest.fixture
async def world(five_stores: World) -> AsyncIterator[World]:
    yield five_stores
    five_stores.heal()
    five_stores.memory[Scheme.HDFS].tree.private = {}


@pytest.fixture
async def eva(world: World) -> Caller:
    return await world.api.user("eva")


def odd_file(world: World, name: str, file: Oddity) -> str:
    """Add the misbehaving file `file` to HDFS; return its path."""
    store = world.memory[Scheme.HDFS]
    assert isinstance(store, OddFileSystem)
    store.odd[name] = file
    return f"/{name}"


def workbook(directory: Path, rows: int, more: bytes = b"") -> bytes:
    """Return a workbook with one sheet, which has this many rows below its header. `more` is added as an image."""
    cells = ['<c t="inlineStr"><is><t>n</t></is></c>', *(f"<c><v>{n}</v></c>" for n in range(rows))]
    parts: dict[str, str | bytes] = {**workbook_parts({"one": column_xml(cells)}), "xl/media/image1.png": more}
    return write_package(directory / "book.xlsx", parts).read_bytes()


async def all_calls(caller: Caller, path: str, file_type: str = "csv", **query: Any) -> list[httpx.Response]:
    """Call guess_metadata, guess_header and preview for a remote file; return the three responses."""
    return [
        await guess(caller, path, **REMOTE),
        await header(caller, path, file_type, **REMOTE, **query),
        await preview(caller, path, file_type, **REMOTE, **query),
    ]


class TestFiles:
    @pytest.mark.importer(45)
    @pytest.mark.parametrize("scheme", list(Scheme))
    async def test_files_on_every_store_are_read(self, world: World, eva: Caller, scheme: Scheme):
        folder = world.folder(scheme)
        folder.put(sales_dot_csv=CSV)
        guessed, has_header, body = await all_calls(eva, folder.at("sales.csv"))
        assert (guessed.json()["type"], has_header.json()) == ("csv", {"has_header": True})
        assert (names(body.json()), types(body.json())) == (["id", "price"], ["INT", "DOUBLE"])
        assert body.json()["preview_data"] == [["1", "1.50"], ["2", "2"]]
        assert folder.all()["sales.csv"] == CSV

    async def test_unusual_names_are_accepted(self, world: World, eva: Caller):
        folder = world.folder(Scheme.FILE)
        folder.put_at("a b%20é'\"+#.csv", CSV)
        assert (await preview(eva, folder.at("a b%20é'\"+#.csv"), **REMOTE)).status_code == 200

    async def test_paths_follow_the_store_rules(self, world: World, eva: Caller):
        folder = world.folder(Scheme.S3A)
        folder.put(x=CSV)
        for path in (folder.at("x"), folder.at("x").replace("s3a://", "S3://"), folder.at("x").replace("/", "%2F")):
            assert (await guess(eva, path, **REMOTE)).status_code == 200

    async def test_changed_file_is_read_again(self, world: World, eva: Caller):
        folder = world.folder(Scheme.HDFS)
        for rows in (1, 2):
            folder.put(x=b"n\n" + b"1\n" * rows)
            assert len((await preview(eva, folder.at("x"), **REMOTE)).json()["preview_data"]) == rows

    async def test_empty_files_are_reported_as_empty(self, world: World, eva: Caller):
        folder = world.folder(Scheme.FILE)
        folder.put(x=b"")
        for answer in await all_calls(eva, folder.at("x")):
            assert refusal(answer) == (400, "file_empty")


class TestSample:
    @pytest.mark.importer(45)
    async def test_only_a_sample_of_a_huge_file_is_read(self, world: World, eva: Caller):
        path = odd_file(world, "huge.csv", Oddity(2**40, 2 * MIB, StorageError("Too much was read."), pattern=b"1,2\n"))
        guessed, has_header, body = await all_calls(eva, path)
        assert (guessed.json()["confidence"], has_header.json()) == (1.0, {"has_header": False})
        assert types(body.json()) == ["BIGINT", "BIGINT"]
        assert len(body.json()["preview_data"]) == 50

    @pytest.mark.importer(41, 45)
    async def test_sample_of_long_records_ends_after_eight_mebibytes(self, world: World, eva: Caller):
        pattern = b"1," + b"x" * (512 * 1024 - 3) + b"\n"
        path = odd_file(world, "long.csv", Oddity(2**40, pattern=pattern))
        body = (await preview(eva, path, **REMOTE, has_header="false")).json()
        assert types(body) == ["BIGINT", "STRING"]
        # The reader may read one more record than the sample has.
        assert len(body["preview_data"]) in {15, 16}
        assert body["warnings"] == [{"code": "truncated_sample", "count": 1, "rows": []}]

    async def test_truncated_file_is_a_storage_error(self, world: World, eva: Caller):
        path = odd_file(world, "broken.csv", Oddity(2**20, 1000, StorageError("It broke."), pattern=b"1,2\n"))
        for answer in await all_calls(eva, path):
            assert refusal(answer) == (500, "storage_unavailable")


class TestWorkbooks:
    @pytest.mark.importer(45)
    async def test_workbook_is_previewed_and_its_copy_removed(self, world: World, eva: Caller, tmp_path: Path):
        content = workbook(tmp_path, 3000, more=Random(1).randbytes(2 * MIB))
        folder = world.folder(Scheme.S3A)
        folder.put(book_dot_xlsx=content)
        guessed, has_header, body = await all_calls(eva, folder.at("book.xlsx"), "excel", sheet_name="one")
        assert guessed.json() == {"type": "excel", "sheet_names": ["one"]}
        assert has_header.json() == {"has_header": True}
        assert (names(body.json()), types(body.json())) == (["n"], ["INT"])
        assert [row for (row,) in body.json()["preview_data"]] == [str(n) for n in range(50)]
        assert left(world) == []

    async def test_workbook_above_the_limit_is_not_copied(self, world: World, eva: Caller):
        path = odd_file(world, "book.xlsx", Oddity(4 * MIB + 1, pattern=b"PK\x03\x04" * 4))
        for answer in await all_calls(eva, path, "excel", sheet_name="one"):
            assert refusal(answer) == (400, "file_too_large")
        assert "4 MiB" in (await guess(eva, path, **REMOTE)).json()["error"]
        assert left(world) == []

    async def test_corrupt_workbook_leaves_no_copy(self, world: World, eva: Caller):
        path = odd_file(world, "bad.xlsx", Oddity(MIB, pattern=b"PK\x03\x04" * 4))
        for answer in await all_calls(eva, path, "excel", sheet_name="one"):
            assert refusal(answer) == (400, "file_corrupt")
        assert left(world) == []

    async def test_disconnected_caller_leaves_no_copy(self, world: World, eva: Caller):
        path = odd_file(world, "slow.xlsx", Oddity(3 * MIB, pattern=b"PK\x03\x04" * 4, pause_s=0.2))
        asked = asyncio.create_task(guess(eva, path, **REMOTE))
        await until(lambda: bool(left(world)))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: not left(world))


def left(world: World) -> list[str]:
    """Return the paths of all files in the upload area."""
    area = world.api.services.settings.uploads_dir
    return [str(path.relative_to(area)) for path in area.rglob("*") if path.is_file()]


class TestRefusals:
    @pytest.mark.importer(16)
    @pytest.mark.parametrize("scheme", list(Scheme))
    async def test_missing_path_is_not_found(self, world: World, eva: Caller, scheme: Scheme):
        folder = world.folder(scheme)
        folder.put(x=CSV)
        for name in ("nothing", "x/y"):
            for answer in await all_calls(eva, folder.at(name)):
                assert answer.json() == {"error": "File not found.", "code": "file_not_found"}
                assert answer.status_code == 400

    @pytest.mark.importer(16)
    @pytest.mark.parametrize("scheme", list(Scheme))
    async def test_directory_is_not_a_file(self, world: World, eva: Caller, scheme: Scheme):
        folder = world.folder(scheme)
        folder.put(d=None)
        for path in (folder.path, folder.at("d/")):
            for answer in await all_calls(eva, path):
                assert refusal(answer) == (400, "invalid_parameter")

    @pytest.mark.importer(61)
    @pytest.mark.security("T1")
    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("file:///../etc/passwd", "invalid_parameter"),
            ("file:///shared/%2e%2e/%2e%2e/etc/passwd", "invalid_parameter"),
            ("file://host/x", "invalid_parameter"),
            ("ftp://host/x", "invalid_parameter"),
            ("s3a://lake/../../x", "invalid_parameter"),
            ("hdfs://other:8020/x", "invalid_parameter"),
            ("file:////etc/passwd", "file_not_found"),
            (" ", "missing_parameter"),
            ("upload/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/sales.csv", "file_not_found"),
        ],
    )
    async def test_paths_that_leave_their_store_are_refused(self, world: World, eva: Caller, path: str, code: str):
        for answer in await all_calls(eva, path):
            assert refusal(answer) == (400, code)

    @pytest.mark.security("T1")
    @pytest.mark.parametrize("scheme", [Scheme.FILE, Scheme.HDFS])
    async def test_links_are_not_followed(self, world: World, eva: Caller, scheme: Scheme):
        folder = world.folder(scheme)
        folder.put(x=CSV)
        folder.link("loop")
        for name in ("loop", "loop/x"):
            for answer in await all_calls(eva, folder.at(name)):
                assert refusal(answer) == (400, "invalid_parameter")

    @pytest.mark.importer(46, 61)
    @pytest.mark.security("T20")
    async def test_other_users_file_is_denied_without_revealing_content(self, world: World, eva: Caller):
        folder = world.folder(Scheme.HDFS)
        folder.put(x=b"secret,words\n1,2\n")
        world.memory[Scheme.HDFS].tree.private = {folder.inner("").rstrip("/"): "somebody"}
        home = world.root / "user" / "somebody"
        home.mkdir(parents=True, exist_ok=True)
        (home / "x").write_bytes(b"secret,words\n1,2\n")
        for path in (folder.at("x"), "file:///user/somebody/x"):
            for answer in await all_calls(eva, path):
                assert refusal(answer) == (400, "permission_denied")
                assert "secret" not in answer.text

    async def test_store_without_the_right_is_denied(self, world: World):
        await AccountRepository(world.api.database).ensure_group("importers", ["importer"])
        lone = await world.api.user("lone", groups=("importers",))
        leave = """delete from group_members where user_id = (select id from users where username = $1)
            and group_id <> (select id from groups where name = 'importers')"""
        await world.api.database.execute(leave, lone.username)
        for answer in await all_calls(lone, "s3a://lake/x"):
            assert refusal(answer) == (400, "permission_denied")

    @pytest.mark.importer(46)
    @pytest.mark.parametrize("call", ["stat", "read"])
    async def test_unavailable_store_is_reported(self, world: World, eva: Caller, call: str):
        folder = world.folder(Scheme.S3A)
        folder.put(x=CSV)
        world.fail(Scheme.S3A, call, StorageUnavailable("no answer from the store"))
        for answer in await all_calls(eva, folder.at("x")):
            assert refusal(answer) == (500, "storage_unavailable")
        world.heal()
        assert [answer.status_code for answer in await all_calls(eva, folder.at("x"))] == [200] * 3

    @pytest.mark.parametrize("failure", [EntryChanged("x was changed."), PathNotFound("x is gone.")])
    async def test_file_changed_during_reading_is_not_found(self, world: World, eva: Caller, failure):
        folder = world.folder(Scheme.S3A)
        folder.put(x=CSV)
        world.fail(Scheme.S3A, "read", failure)
        for answer in await all_calls(eva, folder.at("x")):
            assert refusal(answer) == (400, "file_not_found")

    @pytest.mark.importer(61)
    async def test_previews_never_write_to_a_store(self, world: World, eva: Caller):
        folder = world.folder(Scheme.S3A)
        folder.put(x=CSV)
        before = folder.all()
        world.heal()
        await all_calls(eva, folder.at("x"))
        assert set(world.calls(Scheme.S3A)) == {"stat", "read"}
        assert folder.all() == before


_HEX = "0123456789abcdef" * 4


def made(path: Path, *, hours_ago: float) -> Path:
    """Create a file that was last modified this many hours ago; return its path."""
    path.write_bytes(CONTENT)
    then = time.time() - hours_ago * 3600
    os.utime(path, (then, then))
    return path


def grown_old(path: Path) -> None:
    made(path, hours_ago=2)


async def clean_up(api: Api, *, dry_run: bool = False) -> tuple[int, int]:
    """Run the cleanup; return the numbers of expired and of abandoned files that it has removed. With `dry_run`, it
    only counts them.
    """
    counts: Mapping[str, int] = await api.services.statements.retention.clean_up(dry_run=dry_run)
    return counts["expired import files"], counts["abandoned import files"]


class TestExpired:
    @pytest.mark.importer(9)
    async def test_only_expired_files_are_removed(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            await clean_up(api)
            await uploaded(ana)
            kept = await uploaded(bob)
            await turn_clock(ana, timedelta(hours=25))
            assert await clean_up(api, dry_run=True) == (1, 0)
            assert len(files_in(api)) == 2
            assert await clean_up(api) == (1, 0)
            assert len(files_in(api)) == 1
            assert await is_found(api, bob, kept)
            assert await clean_up(api) == (0, 0)

    @pytest.mark.importer(9)
    async def test_file_missing_from_the_area_is_not_found(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            file_path = await uploaded(ana)
            found = await api.services.importing.uploads.find(await user_of(api, ana), file_path)
            files_in(api)[0].unlink()
            with raises_code("file_not_found"):
                _ = [piece async for piece in found.read()]


class TestAbandoned:
    @pytest.mark.importer(8)
    async def test_files_left_by_a_crash_are_removed_after_an_hour(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            await clean_up(api)
            for name in ("._qs_upload_1", _HEX):
                made(area(api) / name, hours_ago=1.1)
            young = [made(area(api) / name, hours_ago=0.9) for name in ("._qs_upload_2", _HEX[::-1])]
            assert await clean_up(api, dry_run=True) == (0, 2)
            assert len(files_in(api)) == 4
            assert await clean_up(api) == (0, 2)
            assert files_in(api) == sorted(young)

    async def test_recorded_file_is_kept_regardless_of_age(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            await clean_up(api)
            file_path = await uploaded(ana)
            made(files_in(api)[0], hours_ago=1000)
            assert await clean_up(api) == (0, 0)
            assert await is_found(api, ana, file_path)

    async def test_files_of_a_deleted_user_are_removed(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            await clean_up(api)
            await uploaded(ana)
            await api.database.execute("delete from users where username = $1", ana.username)
            grown_old(files_in(api)[0])
            assert await clean_up(api) == (0, 1)
            assert files_in(api) == []

    @pytest.mark.security("T3")
    @pytest.mark.importer(61)
    async def test_foreign_files_are_never_removed(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            await clean_up(api)
            outside = made(area(api).parent / "outside.csv", hours_ago=5)
            (area(api) / _HEX).symlink_to(outside)
            (area(api) / "tree").mkdir()
            (area(api) / _HEX.replace("0", "1")).mkdir()
            others = [
                made(area(api) / name, hours_ago=5)
                for name in ("README", _HEX[1:], f"{_HEX}0", _HEX.upper(), f"tree/{_HEX}")
            ]
            assert await clean_up(api) == (0, 0)
            assert outside.exists()
            assert (area(api) / _HEX).is_symlink()
            assert all(path.exists() for path in others)


async def content() -> AsyncGenerator[bytes]:
    yield CONTENT


class TestPassingCopy:
    async def test_temporary_copy_exists_only_within_its_block(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            async with api.services.importing.uploads.temporary_copy(content()) as path:
                assert path.read_bytes() == CONTENT
                assert path.parent == area(api)
                assert not await is_found(api, ana, f"upload/{path.name[:43]}/a.csv")
            assert files_in(api) == []

    async def test_temporary_copy_is_removed_after_any_failure(self, small_importer: ImporterOpener):
        async def broken() -> AsyncGenerator[bytes]:
            yield CONTENT
            raise KeyError("cut")

        async with small_importer() as api:
            uploads = api.services.importing.uploads
            with pytest.raises(KeyError):
                async with uploads.temporary_copy(broken()):
                    pass
            with pytest.raises(KeyError):
                async with uploads.temporary_copy(content()) as path:
                    raise KeyError(path)
            assert files_in(api) == []
