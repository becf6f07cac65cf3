"""How long a source may take (Contract platform 8.4)."""

from queryserver.files.model import PathReader, Scheme
from queryserver.files.places import Stores
from queryserver.identity.model import User
from queryserver.search.model import Search, SourceAnswer
from queryserver.search.search import limit_s
from queryserver.search.storage_source import StorageSource, WalkBounds


class Plain:
    """A source without a time of its own."""

    async def search(self, user: User, search: Search) -> SourceAnswer:
        del user, search
        return SourceAnswer()


def walk(max_seconds: float) -> StorageSource:
    stores = Stores((), PathReader((Scheme.HDFS,)), {})
    return StorageSource(stores, Scheme.HDFS, WalkBounds(max_entries=1, max_dirs=1, max_seconds=max_seconds))


def test_a_walk_ends_before_it_counts_as_failed() -> None:
    """What it found within its own time is told, however long that is."""
    for seconds in (3, 25, 30, 31, 600):
        assert limit_s(walk(seconds)) >= seconds + 5


def test_other_sources_have_half_a_minute() -> None:
    assert limit_s(Plain()) == limit_s(walk(3)) == 30
