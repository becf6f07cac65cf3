"""Broken files: every failure is told as one, and costs no memory that stays."""

import io
from pathlib import Path

import pytest

from queryserver.errors.files import DecompressionFailed
from queryserver.formats.parquet import parquet_lines

HERE = Path(__file__).parent


@pytest.mark.storage(44)
def test_an_index_without_a_dictionary_is_broken_data() -> None:
    """A page of a dictionary lost its values, which Arrow finds out only when they are used."""
    content = (HERE / "parquet" / "index_out_of_bounds.parquet").read_bytes()
    with pytest.raises(DecompressionFailed):
        list(parquet_lines(io.BytesIO(content)))
