"""The setting `filebrowser.local_root`."""

from pathlib import Path

import pytest
from tests.cases import each

from queryserver.errors.base import ConfigurationError
from queryserver.files.model import StorageUser
from queryserver.files.stores.local import storage as file
from queryserver.platform.settings.tree import Settings


def settings(**filebrowser: str) -> Settings:
    return Settings.model_validate({"filebrowser": filebrowser})


def test_without_a_root_there_is_no_store():
    assert file.build(settings()) is None
    assert file.build(settings(local_root="")) is None


@each("kind", "missing", "file")
def test_a_root_that_is_no_directory_is_a_problem(tmp_path: Path, kind: str):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as told:
        file.build(settings(local_root=str(tmp_path / kind)))
    assert told.value.problems == [f"filebrowser.local_root: {tmp_path / kind} is not a directory."]


async def test_the_root_has_the_umask_of_the_settings(tmp_path: Path):
    file_system = file.build(settings(local_root=str(tmp_path), umask="027"))
    assert file_system is not None
    storage = file_system.as_user(StorageUser("alice"))
    await storage.mkdir("shared/d")
    assert (await storage.stat("shared/d")).permissions == 0o750
    await file_system.close()
