"""How much memory a block of an upload takes."""

import pytest

from queryserver.files.stores.adls.flat import block_size

MIB = 1024 * 1024
TIB = MIB * MIB


@pytest.mark.parametrize("size", [None, 0, 100 * MIB, TIB, 4 * TIB])
def test_an_announced_file_has_no_more_blocks_than_the_service_takes(size: int | None):
    assert block_size(8 * MIB, size) >= 8 * MIB
    assert -(-(size or 0) // block_size(8 * MIB, size)) <= 50_000


@pytest.mark.security("S10")
def test_who_announces_more_than_any_store_takes_gets_no_larger_blocks():
    assert block_size(8 * MIB, 10**18) <= 100 * MIB
