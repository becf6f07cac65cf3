"""Analyzing whole columns and single cells gives the same facts for any text, and no text raises an error."""

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.formats.cell_types.analysis import (
    FIRST_RECORDS,
    WidthUncertain,
    analyze_blocks,
    analyze_records,
    sample_width,
)
from queryserver.formats.cell_types.classes import ColumnFacts, array_facts, classify, column_facts, column_type
from queryserver.formats.cell_types.header import has_header, header_names
from queryserver.formats.delimited.records import BlockReader, RecordReader
from queryserver.formats.table_files import BLANKS, MAX_COLUMNS, CellKind, Delimiters, QuotedText

NASTY = (
    *(
        "",
        " ",
        "\\N",
        "null",
        "NaN",
        "-inf",
        "+Infinity",
        "true",
        "FALSE",
        "falſe",
        "-0",
        "00",
        "0",
        ".",
        "-",
        "1.",
        "+1",
    ),
    *("1.", "+1", "1e5.", "1e400", "1e5", "-1.5E-10", "007", "1,234", "0x1F", "1_000", "1" * 16, "9" * 19),
    *("9" * 38, "9" * 39, "-9223372036854775808", "9223372036854775808", "2147483648", "-2147483648", "2147483647"),
    *(
        "0." + "1" * 15,
        "0." + "1" * 16,
        "0." + "0" * 30 + "1",
        "1." + "1" * 38,
        "1" * 19 + "." + "1" * 19,
        "-.5",
        "0.0",
    ),
    *("2024-02-29", "2023-02-29", "2024/02/30", "0000-01-01", "2024-01-15T10:30", "2024-01-15 24:00", "9999/12/31"),
    *("2024-01-15 10:30:00", "2024-01-15 10:30:00Z", "0000-01-01 10:30:00", "2024-01-15 10:30+05"),
    *("2024-01-15T10:30:00.123456789Z", "2024-01-15T10:30+05:30", "2024-01-15T10:30-2400", "24:00", "23:59:59", "9:05"),
    *("١٢", "１", "\u00a01", "1\u00a0", "\u20281", "1\n", "\t2\r", "²", "1\u0000", "\u0000", "\x1f1", "é", "😀"),
)

written = st.sampled_from(NASTY)
numbers = st.integers(-(10**40), 10**40).map(str) | st.decimals(allow_nan=False, allow_infinity=False).map(str)
floats = st.floats().map(repr)
days = st.dates().map(str) | st.datetimes().map(str) | st.times().map(str)
spelled = st.text("0123456789-+./: TZeENnulaitfrs\\\t\u0661", max_size=12)
padded = st.tuples(st.text(BLANKS, max_size=2), written | numbers, st.text(BLANKS, max_size=2)).map("".join)
cells = written | numbers | floats | days | spelled | padded | st.text(max_size=8)
# Columns of one kind with a few cells of another, as in real files, so that a later type check must take over from an
# earlier one.
plain = st.sampled_from(
    [
        st.integers(-(10**10), 10**10).map(str),
        st.integers(-(2**63) - 5, -(2**63) + 5).map(str) | st.integers(2**63 - 5, 2**63 + 5).map(str),
        st.decimals(-(10**6), 10**6, places=3).map(str),
        st.floats(-180, 180).map(repr),
        st.dates().map(str),
        st.datetimes().map(str),
        st.datetimes().map(lambda time: f"{time:%Y-%m-%dT%H:%M:%SZ}".zfill(20)),
        st.text("-0.12", max_size=5).filter(lambda text: "." in text),
        st.booleans().map(str),
    ]
).flatmap(lambda kind: st.lists(kind, min_size=30, max_size=60))
columns = st.lists(cells, max_size=60) | st.tuples(plain, st.lists(cells, max_size=4)).map(
    lambda parts: parts[0] + parts[1]
)


def _one_by_one(column: Sequence[str | None]) -> ColumnFacts:
    facts = ColumnFacts()
    facts.add_all(QuotedText(cell) for cell in column if cell is not None)
    return facts


def _known(facts: ColumnFacts) -> ColumnFacts:
    """Return the facts; for a text column, only its kind, because other facts are no longer tracked."""
    return ColumnFacts({CellKind.TEXT}) if facts.is_text else facts


@examples(120)
@given(column=columns, nulls=st.integers(0, 3), at=st.integers(0, 70), repeated=st.sampled_from([1, 1, 20]))
def test_whole_columns_have_the_facts_of_their_cells(column: list[str], nulls: int, at: int, repeated: int) -> None:
    filled: list[str | None] = [*column[:at], *[None] * nulls, *column[at:]] * repeated
    array = pa.array(["x", *filled], pa.string())[1:]
    exact, fast = _one_by_one(filled), array_facts(array)
    assert _known(fast) == _known(exact)
    for is_whole in (True, False):
        assert column_type(fast, is_whole=is_whole) == column_type(exact, is_whole=is_whole)


@examples(60)
@given(column=columns, quoted=st.sets(st.integers(0, 60)))
def test_record_columns_have_the_facts_of_their_cells(column: list[str], quoted: set[int]) -> None:
    mixed = [QuotedText(cell) if position in quoted else cell for position, cell in enumerate(column)]
    exact = ColumnFacts()
    exact.add_all(mixed)
    assert _known(column_facts(mixed)) == _known(exact)


@examples(200)
@given(cell=cells, before=st.text(BLANKS, max_size=3), after=st.text(BLANKS, max_size=3))
def test_every_cell_has_a_class_regardless_of_surrounding_blanks(cell: str, before: str, after: str) -> None:
    assert classify(before + cell + after) is classify(cell)


@examples(60)
@given(records=st.lists(st.lists(cells, min_size=1, max_size=5), max_size=6))
def test_every_text_has_a_header_or_none(records: list[list[str]]) -> None:
    assert has_header(records) in {True, False}


@examples(60)
@given(header=st.lists(st.sampled_from(["", "a", "A", "a_2", "a_3", "column_1", "b" * 255]) | cells, max_size=12))
def test_column_names_are_unique_short_and_never_empty(header: list[str]) -> None:
    names = header_names(header, len(header))
    assert len(names) == len(header) <= MAX_COLUMNS
    assert len({name.lower() for name in names}) == len(names)
    assert all(0 < len(name) <= 255 and "\n" not in name for name in names)


rows = st.lists(
    st.lists(cells | st.sampled_from(['"', '"a,b"', '""', '"null"', '"x']), min_size=1, max_size=4), max_size=8
)
separators = st.sampled_from([",", "\t", "||"])


@examples(60)
@given(lines=rows, field=separators, header=st.booleans(), repeated=st.sampled_from([1, 30]), is_whole=st.booleans())
def test_block_and_record_previews_are_identical(
    lines: list[list[str]], field: str, header: bool, repeated: int, is_whole: bool
) -> None:
    text = "\n".join(field.join(cells) for cells in lines * repeated)
    delimiters = Delimiters(field)
    reader = RecordReader(delimiters)
    records = reader.feed(text, final=True)
    if not records:
        return
    exact = analyze_records(records, has_header=header, is_whole=is_whole, unclosed=reader.unclosed)
    first = records[:FIRST_RECORDS]
    block_reader = BlockReader(delimiters, "utf-8", sample_width(first, has_header=header, is_whole=is_whole))
    content = text.encode()
    blocks = [*block_reader.feed(content[:200]), *block_reader.feed(content[200:]), *block_reader.finish()]
    try:
        assert analyze_blocks(first, blocks, has_header=header, is_whole=is_whole) == exact
    except WidthUncertain:
        assert len(set(map(len, records))) > 1
