"""An application with five stores, four of which are in memory, for tests of transfers between stores."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from tests.api.driving import Api, open_api
from tests.fakes.storage import LIKE_ABFS, LIKE_HDFS, LIKE_OZONE, LIKE_S3, MemoryFileSystem
from tests.fakes.storage_faults import Failure, FaultyFileSystem
from tests.fakes.storage_tree import MemoryTree

from queryserver.files.build import BUILDERS, Builder
from queryserver.files.model import EntryKind, Scheme
from queryserver.files.protocol import FileSystem, StorageTraits
from queryserver.platform.settings.stores import OzoneSettings
from queryserver.platform.settings.tree import Settings

CHUNK_BYTES = 100
"""The maximum size in bytes of a file that is copied on Ozone."""

_numbers = count(1)
_PLACES = {
    Scheme.HDFS: "/area",
    Scheme.S3A: "s3a://lake/area",
    Scheme.ABFS: "abfs://box/area",
    Scheme.OFS: "ofs://service/volume/bucket/area",
    Scheme.FILE: "file:///shared/area",
}
_ROOTS = {Scheme.HDFS: "/", Scheme.FILE: "file:///"}


def memory_stores() -> dict[Scheme, MemoryFileSystem]:
    """Return in-memory stores that have the traits of the corresponding real stores."""
    objects = StorageTraits(lists_in_order=True, container_levels=1)
    ozone = StorageTraits(lists_in_order=True, container_levels=3, acts_as_user=True, max_copy_bytes=CHUNK_BYTES)
    hadoop = StorageTraits(lists_in_order=True, acts_as_user=True, deletes_to_trash=True, home_parent="user")
    buckets = ("service/volume/bucket", "service/volume/other")
    return {
        Scheme.HDFS: MemoryFileSystem(Scheme.HDFS, hadoop, LIKE_HDFS),
        Scheme.S3A: MemoryFileSystem(Scheme.S3A, objects, LIKE_S3, containers=("lake", "other")),
        Scheme.ABFS: MemoryFileSystem(Scheme.ABFS, objects, LIKE_ABFS, containers=("box",)),
        Scheme.OFS: MemoryFileSystem(Scheme.OFS, ozone, LIKE_OZONE, containers=buckets),
    }


@dataclass
class StoreFolder:
    """A directory on one store for one test.

    The paths in methods are relative to it. The content None stands for a directory.
    """

    path: str
    """The normalized path, including the scheme."""
    scheme: Scheme
    tree: MemoryTree | None
    directory: Path

    def at(self, name: str) -> str:
        """Return the normalized path of the entry `name`."""
        return f"{self.path}/{name}"

    def put(self, **entries: bytes | None) -> None:
        """Create entries, whose names are the keywords. In a keyword, `__` stands for `/`, and `_dot_` for a dot."""
        for key, content in entries.items():
            self.put_at(key.replace("_dot_", ".").replace("__", "/"), content)

    def put_at(self, name: str, content: bytes | None) -> None:
        if self.tree is None:
            folder = self.directory / name
            (folder if content is None else folder.parent).mkdir(parents=True, exist_ok=True)
            if content is not None:
                folder.write_bytes(content)
        elif content is None:
            self.tree.make_container(self.inner(name))
        else:
            self.tree.put(self.inner(name), content)

    def link(self, name: str) -> None:
        """Create a symbolic link to this directory."""
        if self.tree is None:
            (self.directory / name).symlink_to(self.directory)
        else:
            self.tree.make_entry(self.inner(name), EntryKind.LINK)

    def all(self) -> Mapping[str, bytes | None]:
        """Return the content of all entries below this directory, by relative path."""
        if self.tree is None:
            return {
                str(path.relative_to(self.directory)): None if path.is_dir() else path.read_bytes()
                for path in self.directory.rglob("*")
            }
        base = self.inner("")
        return {
            path.removeprefix(base): None if entry.kind is EntryKind.DIRECTORY else entry.content
            for path, entry in self.tree.entries.items()
            if path.startswith(base)
        }

    def inner(self, name: str) -> str:
        """Return the path of the entry `name` in the format that the store receives, without scheme and leading
        slash.
        """
        return f"{self.path.removeprefix('/').partition('://')[2] or self.path.removeprefix('/')}/{name}"


@dataclass
class World:
    """An application with five stores, and direct access to their content."""

    api: Api
    root: Path
    memory: Mapping[Scheme, MemoryFileSystem]
    faulty: Mapping[Scheme, FaultyFileSystem]

    def folder(self, scheme: Scheme, *, parent: str | None = None) -> StoreFolder:
        """Create a directory on a store. It is below `parent`, or below the store's default parent."""
        path = f"{parent or _PLACES[scheme]}{next(_numbers)}"
        tree = self.memory[scheme].tree if scheme in self.memory else None
        folder = StoreFolder(path, scheme, tree, self.root / path.removeprefix("file:///"))
        folder.put_at("", None) if tree is None else tree.make_container(folder.inner("").rstrip("/"))
        return folder

    def fail(self, scheme: Scheme, call: str, failure: Failure) -> None:
        """From now on, make all calls of this method on the store fail. Resets the call counts."""
        self.faulty[scheme].calls.clear()
        self.faulty[scheme].failures[call] = failure

    def heal(self) -> None:
        for store in self.faulty.values():
            store.failures.clear()
            store.calls.clear()

    def calls(self, scheme: Scheme) -> Counter[str]:
        """Return the number of calls of each method on the store since the last `fail` or `heal`."""
        return self.faulty[scheme].calls


def each_store(*schemes: Scheme) -> pytest.MarkDecorator:
    """Run a test once for each store. The test module must have a fixture `folder` that takes the scheme."""
    return pytest.mark.parametrize("folder", schemes, indirect=True, ids=str)


def builders(stores: Mapping[Scheme, FileSystem]) -> Mapping[Scheme, Builder]:
    """Return builders for an ordinary local root and for the given stores. No other stores are configured."""
    given: dict[Scheme, Builder] = {Scheme.FILE: BUILDERS[Scheme.FILE]}
    for scheme, store in stores.items():
        given[scheme] = lambda _, store=store: store
    return given


def with_ozone(settings: Settings) -> Settings:
    """Return a copy of the settings with an Ozone service."""
    ozone = {"default": OzoneSettings(fs_defaultfs="ofs://service")}
    return settings.model_copy(update={"desktop": settings.desktop.model_copy(update={"ozone": ozone})})


@asynccontextmanager
async def open_world(
    settings: Settings, root: Path, memory: Mapping[Scheme, MemoryFileSystem] | None = None
) -> AsyncIterator[World]:
    """Open an application on the given in-memory stores, or on new stores if none are given."""
    memory = memory or memory_stores()
    faulty = {scheme: FaultyFileSystem(store) for scheme, store in memory.items()}
    async with open_api(with_ozone(settings), builders(faulty)) as api:
        yield World(api, root, memory, faulty)
