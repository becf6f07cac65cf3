"""The read sizes that all stores share, and timestamps that the calendar cannot represent."""

import os
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from queryserver.files.stores.local.tree import status_of
from queryserver.files.stores.transfer_blocks import ReadSizes
from queryserver.files.stores.webhdfs.statuses import file_status

KIB = 1024


@pytest.mark.parametrize(
    ("readers", "piece_bytes"), [(0, 1024 * KIB), (1, 1024 * KIB), (8, 1024 * KIB), (9, 896 * KIB), (100, 64 * KIB)]
)
def test_readers_share_eight_mib(readers: int, piece_bytes: int) -> None:
    sizes = ReadSizes()
    with ExitStack() as reading:
        for _ in range(readers):
            reading.enter_context(sizes.reader())
        assert sizes.piece_bytes == piece_bytes
    assert sizes.piece_bytes == 1024 * KIB


def test_read_size_is_limited_by_the_store() -> None:
    assert ReadSizes(max_bytes=256 * KIB).piece_bytes == 256 * KIB


def test_failed_reader_is_no_longer_counted() -> None:
    sizes = ReadSizes()
    with ExitStack() as reading:
        for _ in range(15):
            reading.enter_context(sizes.reader())
        before = sizes.piece_bytes
        with pytest.raises(ZeroDivisionError), sizes.reader():
            _ = 1 / (before - before)
        assert sizes.piece_bytes == before


_TOLD = {"type": "FILE", "length": 5, "permission": "644"}
_YEAR_10000_S = 253402300800


@pytest.mark.parametrize("seconds", [_YEAR_10000_S, 2**62, -(2**40)])
def test_time_beyond_the_calendar_is_unknown(seconds: int) -> None:
    times = {"st_mtime_ns": seconds * 10**9, "st_atime_ns": seconds * 10**9}
    local = status_of("f", os.stat_result((0o100644, 1, 1, 1, 0, 0, 5, 0, 0, 0), times))
    told = {**_TOLD, "modificationTime": seconds * 1000, "accessTime": seconds * 1000}
    for status in (local, file_status(told, "f")):
        assert (status.size_bytes, status.modified_at, status.accessed_at) == (5, None, None)


def test_last_second_of_the_calendar_is_valid() -> None:
    told = {**_TOLD, "modificationTime": _YEAR_10000_S * 1000 - 1000}
    assert file_status(told, "f").modified_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
