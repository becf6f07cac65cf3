"""The first entries of a sorted directory, compared with a full sort."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.files.directory_pages import SortedEntries, SortKey
from queryserver.files.model import EntryKind, FileStatus

_TIMES = st.one_of(
    st.none(),
    st.integers(-5, 5).map(lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)),
    st.integers(-5, 5).map(lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds / 4)),
)
_TEXTS = st.sampled_from(["", "a", "ab", "b", "B", "é", "\U0001f600", "\uffff"])


@st.composite
def _entries(draw: st.DrawFn) -> list[FileStatus]:
    names = draw(st.lists(st.text("abAB1é日\U0001f600", min_size=1, max_size=3), unique=True, max_size=40))
    return [
        FileStatus(
            path=f"dir/{name}",
            kind=draw(st.sampled_from(EntryKind)),
            size_bytes=draw(st.integers(0, 4)),
            modified_at=draw(_TIMES),
            permissions=draw(st.integers(0, 0o1777)),
            accessed_at=draw(_TIMES),
            owner=draw(_TEXTS),
            group=draw(_TEXTS),
            has_acl=draw(st.booleans()),
            block_size=draw(st.sampled_from([0, 128 * 1024 * 1024])),
            replication=draw(st.integers(0, 512)),
        )
        for name in names
    ]


def _whole_second(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(microsecond=0)


def _seconds(time: datetime | None) -> int:
    return 0 if time is None else int((_whole_second(time) or time).timestamp())


_PRIMARY = {
    SortKey.NAME: lambda entry: entry.name,
    SortKey.TYPE: lambda entry: entry.kind.value,
    SortKey.SIZE: lambda entry: 0 if entry.is_directory else entry.size_bytes,
    SortKey.ATIME: lambda entry: _seconds(entry.accessed_at),
    SortKey.MTIME: lambda entry: _seconds(entry.modified_at),
    SortKey.USER: lambda entry: entry.owner,
    SortKey.GROUP: lambda entry: entry.group,
}


def _sorted_by(entries: list[FileStatus], key: SortKey, *, descending: bool) -> list[FileStatus]:
    by_name = sorted(entries, key=lambda entry: entry.name)
    return sorted(by_name, key=_PRIMARY[key], reverse=descending)


@pytest.mark.storage(28)
@given(
    entries=_entries(),
    key=st.sampled_from(SortKey),
    descending=st.booleans(),
    limit=st.integers(1, 12),
    unsorted=st.integers(1, 9),
)
def test_first_entries_match_a_full_sort(
    entries: list[FileStatus], key: SortKey, descending: bool, limit: int, unsorted: int
) -> None:
    first = SortedEntries("dir", key, descending=descending, limit=limit, unsorted=unsorted)
    for entry in entries:
        first.add([entry])
    window = list(first.window(0, limit))
    expected = _sorted_by(entries, key, descending=descending)[:limit]
    assert first.seen == len(entries)
    assert [entry.path for entry in window] == [entry.path for entry in expected]
    for found, entry in zip(window, expected, strict=True):
        assert (found.modified_at, found.accessed_at) == (
            _whole_second(entry.modified_at),
            _whole_second(entry.accessed_at),
        )
        assert (found.kind, found.size_bytes, found.permissions, found.owner, found.group) == (
            entry.kind,
            entry.size_bytes,
            entry.permissions,
            entry.owner,
            entry.group,
        )
        assert (found.has_acl, found.block_size, found.replication) == (
            entry.has_acl,
            entry.block_size,
            entry.replication,
        )
