"""The end of what lies in the upload area (Contract importer 3.2, 14.1; platform 12.2)."""

import os
import time
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from tests.api.driving import Api
from tests.api.importer.conftest import CONTENT, ImporterOpener, uploaded
from tests.api.importer.test_uploads import area, files_in, is_found, turn_clock, user_of
from tests.refusals import raises_code

_HEX = "0123456789abcdef" * 4


def made(path: Path, *, hours_ago: float) -> Path:
    """A file that was last written at that time."""
    path.write_bytes(CONTENT)
    then = time.time() - hours_ago * 3600
    os.utime(path, (then, then))
    return path


def grown_old(path: Path) -> None:
    made(path, hours_ago=2)


async def clean_up(api: Api, *, dry_run: bool = False) -> tuple[int, int]:
    """How many expired files, and how many abandoned ones, went or would go."""
    counts: Mapping[str, int] = await api.services.statements.retention.clean_up(dry_run=dry_run)
    return counts["expired import files"], counts["abandoned import files"]


class TestExpired:
    @pytest.mark.importer(9)
    async def test_an_expired_file_is_removed_and_others_stay(self, small_importer: ImporterOpener):
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
    async def test_a_file_that_cannot_be_found_in_the_area_is_not_found(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            file_path = await uploaded(ana)
            found = await api.services.importing.uploads.find(await user_of(api, ana), file_path)
            files_in(api)[0].unlink()
            with raises_code("file_not_found"):
                _ = [piece async for piece in found.read()]


class TestAbandoned:
    @pytest.mark.importer(8)
    async def test_what_a_crash_left_is_removed_after_an_hour(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            await clean_up(api)
            for name in ("._qs_upload_1", _HEX):
                made(area(api) / name, hours_ago=1.1)
            young = [made(area(api) / name, hours_ago=0.9) for name in ("._qs_upload_2", _HEX[::-1])]
            assert await clean_up(api, dry_run=True) == (0, 2)
            assert len(files_in(api)) == 4
            assert await clean_up(api) == (0, 2)
            assert files_in(api) == sorted(young)

    async def test_a_file_with_a_record_stays_however_old(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            await clean_up(api)
            file_path = await uploaded(ana)
            made(files_in(api)[0], hours_ago=1000)
            assert await clean_up(api) == (0, 0)
            assert await is_found(api, ana, file_path)

    async def test_the_files_of_a_user_go_with_the_user(self, small_importer: ImporterOpener):
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
    async def test_what_the_importer_did_not_make_is_never_removed(self, small_importer: ImporterOpener):
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
    async def test_a_copy_is_there_as_long_as_the_block(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            async with api.services.importing.uploads.temporary_copy(content()) as path:
                assert path.read_bytes() == CONTENT
                assert path.parent == area(api)
                assert not await is_found(api, ana, f"upload/{path.name[:43]}/a.csv")
            assert files_in(api) == []

    async def test_a_copy_goes_whatever_happens(self, small_importer: ImporterOpener):
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
