"""The settings and the upload area of the local root."""

import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace

import pytest

from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InsufficientStorage, PathNotFound
from queryserver.files.model import StorageUser
from queryserver.files.stores.local import storage as file
from queryserver.files.stores.local.storage import LocalFileSystem, LocalUploadArea
from queryserver.platform.machine_limits import DiskFloor
from queryserver.platform.settings.tree import Settings, contradictions

_ANYBODY = 0o777


async def content() -> AsyncGenerator[bytes]:
    yield b"a"


async def test_missing_directory_is_created_for_the_service_only(tmp_path: Path):
    async with LocalUploadArea(tmp_path / "a" / "b") as area:
        await area.write("f", content(), overwrite=False)
        assert area.path_of("f").read_bytes() == b"a"
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_existing_directory_keeps_its_mode(tmp_path: Path):
    tmp_path.chmod(0o750)
    LocalUploadArea(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_world_writable_directory_is_rejected(tmp_path: Path):
    tmp_path.chmod(_ANYBODY)
    with pytest.raises(ConfigurationError) as raised:
        LocalUploadArea(tmp_path)
    assert raised.value.problems == [
        f"importer.upload_dir: {tmp_path}: the directory is writable by all users and has no sticky bit."
    ]


def test_file_is_not_a_directory(tmp_path: Path):
    (tmp_path / "f").touch()
    for place in (tmp_path / "f", tmp_path / "f" / "g"):
        with pytest.raises(ConfigurationError) as raised:
            LocalUploadArea(place)
        assert raised.value.problems[0].startswith(f"importer.upload_dir: {place}: ")


async def test_touch_updates_the_time_and_follows_no_link(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.touch()
    os.utime(outside, (1, 1))
    async with LocalUploadArea(tmp_path / "area") as area:
        await area.write("f", content(), overwrite=False)
        os.utime(area.path_of("f"), (1, 1))
        area.path_of("link").symlink_to(outside)
        assert await area.touch("f")
        assert await area.touch("link")
        assert not await area.touch("gone")
        assert area.path_of("f").stat().st_mtime > 1
    assert outside.stat().st_mtime == 1


async def test_announced_size_beyond_free_space_is_rejected_before_reading(tmp_path: Path):
    read: list[bytes] = []

    async def body() -> AsyncGenerator[bytes]:
        read.append(b"a")
        yield b"a"

    room = SimpleNamespace(total=10_000, free=1_100)
    store = LocalFileSystem(tmp_path, floor=DiskFloor(min_bytes=100, usage=lambda _: room))
    user = store.as_user(StorageUser("alice"))
    with pytest.raises(InsufficientStorage):
        await user.write("shared/new/file", body(), overwrite=False, size_bytes=1_001)
    assert read == []
    with pytest.raises(PathNotFound):
        await user.stat("shared/new")
    await user.write("shared/new/file", body(), overwrite=False, size_bytes=1_000)
    assert read == [b"a"]
    await store.close()


@pytest.mark.security("T3")
@pytest.mark.parametrize(
    ("uploads", "root", "key"),
    [
        ("/srv/files/uploads", "/srv/files", "importer.upload_dir"),
        ("/srv/files", "/srv/files", "importer.upload_dir"),
        ("/srv/uploads", "/srv/uploads/files", "filebrowser.local_root"),
        ("/srv/uploads", "/srv/uploads2", None),
        ("/srv/uploads", None, None),
    ],
)
def test_upload_directory_and_local_root_must_not_overlap(uploads: str, root: str | None, key: str | None):
    settings = Settings.model_validate({"importer": {"upload_dir": uploads}, "filebrowser": {"local_root": root or ""}})
    found = [complaint[0] for complaint in contradictions(settings, {})]
    assert [one for one in found if one in {"importer.upload_dir", "filebrowser.local_root"}] == ([key] if key else [])


def settings(**filebrowser: str) -> Settings:
    return Settings.model_validate({"filebrowser": filebrowser})


def test_no_root_means_no_store():
    assert file.build(settings()) is None
    assert file.build(settings(local_root="")) is None


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_root_must_be_a_directory(tmp_path: Path, kind: str):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as raised:
        file.build(settings(local_root=str(tmp_path / kind)))
    assert raised.value.problems == [f"filebrowser.local_root: {tmp_path / kind} is not a directory."]


async def test_root_uses_the_configured_umask(tmp_path: Path):
    file_system = file.build(settings(local_root=str(tmp_path), umask="027"))
    assert file_system is not None
    storage = file_system.as_user(StorageUser("alice"))
    await storage.mkdir("shared/d")
    assert (await storage.stat("shared/d")).permissions == 0o750
    await file_system.close()
