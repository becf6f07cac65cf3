"""What readers of one store take at a time."""

from contextlib import ExitStack

import pytest

from queryserver.files.stores.reading import ReadSizes

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


def test_no_reader_takes_more_than_the_store_wants() -> None:
    assert ReadSizes(most_bytes=256 * KIB).piece_bytes == 256 * KIB


def test_a_reader_that_fails_counts_no_more() -> None:
    sizes = ReadSizes()
    with ExitStack() as reading:
        for _ in range(15):
            reading.enter_context(sizes.reader())
        before = sizes.piece_bytes
        with pytest.raises(ZeroDivisionError), sizes.reader():
            _ = 1 / (before - before)
        assert sizes.piece_bytes == before
