"""Cells of random arrays at random offsets, compared with Arrow's conversion of each single value."""

from collections.abc import Callable
from itertools import pairwise

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.cells import cell_values, render_page

COLUMN = Column("c", ResultType.STRING, "")
Kinds = tuple[pa.DataType, st.SearchStrategy[object]]

SCALARS = st.sampled_from(
    [
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
        (pa.string(), st.text(max_size=5)),
        (pa.bool_(), st.booleans()),
    ]
)


def _lists(kind: Kinds) -> Kinds:
    return pa.list_(kind[0]), st.lists(st.none() | kind[1], max_size=3)


def _pairs(kind: Kinds) -> Kinds:
    return pa.list_(kind[0], 2), st.lists(st.none() | kind[1], min_size=2, max_size=2)


def _structs(kind: Kinds) -> Kinds:
    return pa.struct([("a", kind[0]), ("b", pa.string())]), st.fixed_dictionaries(
        {"a": st.none() | kind[1], "b": st.text(max_size=2)}
    )


def _maps(kind: Kinds) -> Kinds:
    return pa.map_(pa.string(), kind[0]), st.dictionaries(st.text(max_size=2), st.none() | kind[1], max_size=3).map(
        lambda value: list(value.items())
    )


WRAPS: list[Callable[[Kinds], Kinds]] = [_lists, _pairs, _structs, _maps]
KINDS = st.recursive(
    SCALARS, lambda inner: st.builds(lambda wrap, kind: wrap(kind), st.sampled_from(WRAPS), inner), max_leaves=3
)


def native(value: object) -> object:
    """Convert the maps in a result of to_pylist() to dictionaries."""
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        return {key: native(item) for key, item in value}
    if isinstance(value, list):
        return [native(item) for item in value]
    return {key: native(item) for key, item in value.items()} if isinstance(value, dict) else value


def without_empty_maps(value: object) -> object:
    """Replace empty lists and maps with None, because an empty map is [] in Arrow's result and {} in ours."""
    if value in ([], {}):
        return None
    if isinstance(value, list):
        return [without_empty_maps(item) for item in value]
    return {key: without_empty_maps(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.item(28)
@examples(300)
@given(st.data())
def test_slice_values_match_arrow(data: st.DataObject):
    kind, values = data.draw(KINDS)
    array = pa.array(data.draw(st.lists(st.none() | values, max_size=8)), kind)
    start, length = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    part = array.slice(min(start, len(array)), length)
    cells = cell_values(part, COLUMN)
    assert [without_empty_maps(cell) for cell in cells] == [
        without_empty_maps(native(value)) for value in part.to_pylist()
    ]
    assert orjson.loads(orjson.dumps(cells)) == cells


@examples(300)
@given(
    texts=st.lists(st.none() | st.text(max_size=8), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    max_bytes=st.integers(1, 150),
)
def test_page_holds_as_many_rows_as_fit(texts: list[str | None], cuts: list[int], max_bytes: int):
    table = pa.table({"c": pa.array(texts, pa.string())})
    edges = [0, *sorted(cuts), len(texts)]
    batches = [table.slice(start, max(0, end - start)) for start, end in pairwise(edges)]
    page = render_page(batches, columns=[COLUMN], escape=False, max_bytes=max_bytes)
    rows = [[text] for text in texts]
    fitting = [count for count in range(1, len(rows) + 1) if len(orjson.dumps(rows[:count])) <= max_bytes]
    assert page.rows == max(fitting, default=0)
    assert page.json == orjson.dumps(rows[: page.rows])
