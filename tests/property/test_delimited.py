"""Delimited text: the exact reader follows the contract, and the fast reader gives the same result as the exact one."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.property.delimited_reference import records_of
from tests.refusals import raises_code

from queryserver.errors.base import InvalidParameter, InvalidRequest
from queryserver.formats.delimited.cutting import ArrowCsvReader
from queryserver.formats.delimited.records import BlockReader, RecordReader, build_block
from queryserver.formats.detection import detect_delimiters, detect_file_type, parse_delimiters
from queryserver.formats.table_files import RECORD_TYPES, Delimiters, FileType, QuotedText

DELIMITERS = [
    Delimiters(),
    Delimiters(";", "'"),
    Delimiters("\t"),
    Delimiters(" "),
    Delimiters("|", None),
    Delimiters("||"),
    Delimiters(" | "),
    Delimiters("é"),
    Delimiters(",", '"', "\r"),
    Delimiters(",", '"', "##"),
    Delimiters("|", '"', "||"),
    Delimiters("ab", '"', "bc"),
    Delimiters("\r"),
    Delimiters("\0"),
    Delimiters("\n", '"', "\r"),
    Delimiters(",", "«"),
    Delimiters(",", " "),
]
SIGNS = [
    *("a", "b", "c", "1", ",", ";", "|", "#", '"', "'", "«", "\t", " ", "\n", "\r", "\r\n", "\0", "\x1f", "\v", "\f"),
    *(
        "é",
        "€",
        "\U0001f600",
        "\u2028",
        "\x85",
        "\ufeff",
        "null",
        "NULL",
        "nUll ",
        "\\N",
        '""',
        '","',
        '"\n',
        ',"',
        "||",
    ),
    *('"\r\n"', '" ', ' "', "\n\n", "  ", ",,", '"a"', '"a,b"', '"a""b"', '""\n', '5" x', "a,b\n", "1,2,3\n"),
]
texts = st.lists(st.sampled_from(SIGNS), max_size=30).map("".join)
cuts = st.lists(st.integers(0, 80), max_size=4)


def pieces(text, places):
    places = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def exactly(text: str, delimiters: Delimiters):
    reader = RecordReader(delimiters)
    return reader.feed(text, final=True), reader.unclosed


@examples(300)
@given(texts, cuts, st.sampled_from(DELIMITERS))
@example('"a', [], Delimiters())
@example('a,"b\nc', [2, 3], Delimiters())
@example('a ab"b"bc', [], Delimiters("ab", '"', "bc"))
def test_records_follow_contract_for_any_chunks(text, places, delimiters):
    expected, unclosed = records_of(text, delimiters)
    reader = RecordReader(delimiters)
    found = []
    numbers = []
    for piece in pieces(text, places):
        found += reader.feed(piece)
        numbers += reader.unclosed
    found += reader.feed("", final=True)
    numbers += reader.unclosed
    assert found == [[cell for cell, _ in record] for record in expected]
    assert numbers == unclosed
    for record, cells in zip(found, expected, strict=True):
        for cell, (text_of_cell, is_quoted) in zip(record, cells, strict=True):
            matters = is_quoted and text_of_cell.strip(" \t\n\r\f\v").lower() in {"", "null"}
            assert isinstance(cell, QuotedText) == matters


@examples(300)
@given(texts, st.sampled_from([Delimiters(), *DELIMITERS]), st.sampled_from([0, 0, 0, 1]))
@example("\r\r\na\n", Delimiters(), 0)
@example("  \na\n", Delimiters(), 0)
@example("\ufeffa,b\n", Delimiters(), 0)
@example("a, null\n", Delimiters(), 0)
@example('"null",null\n"",\n', Delimiters(), 0)
@example('a "b" c,d\n', Delimiters(), 0)
@example('a "b c\n', Delimiters(" "), 0)
@example("\r\na\n", Delimiters("\r"), 0)
def test_arrow_result_matches_exact_reader(text, delimiters, more_columns):
    width = max(map(len, exactly(text, delimiters)[0]), default=1) + more_columns
    encoded = text.encode()
    plain = ArrowCsvReader(delimiters, width)
    end = plain.end(encoded, 0)
    batch = plain.batch(encoded[:end]) if end else None
    if batch is not None and not batch.num_rows:
        assert not exactly(encoded[:end].decode(), delimiters)[0]
    elif batch is not None:
        records, unclosed = exactly(encoded[:end].decode(), delimiters)
        block = build_block(records, 1, width, unclosed)
        assert batch.to_pydict() == block.columns.to_pydict()
        assert batch.schema == block.columns.schema
        assert not [*block.long_rows, *block.short_rows, *block.unclosed]
        assert records + exactly(encoded[end:].decode(), delimiters)[0] == exactly(text, delimiters)[0]


ENCODINGS = ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "gb18030"]


@examples(60)
@given(st.lists(st.tuples(texts, st.integers(1, 400)), max_size=6), cuts, st.sampled_from(DELIMITERS), st.data())
def test_blocks_match_exact_reader_for_any_chunks(parts, places, delimiters, data):
    """Parts are repeated, so that some texts are long enough for the Arrow reader."""
    text = "".join(part * min(times, 20_000 // (len(part) + 1)) for part, times in parts).lstrip("\ufeff")
    encoding = data.draw(st.sampled_from(ENCODINGS))
    encoded = text.encode(encoding)
    try:
        records, unclosed = exactly(text, delimiters)
    except InvalidRequest:
        with raises_code("too_many_columns"):
            read_all(BlockReader(delimiters, encoding, 2), pieces(encoded, places))
        return
    width = data.draw(st.sampled_from([*range(1, 5), *sorted({len(record) for record in records})]))
    reader = BlockReader(delimiters, encoding, width)
    blocks = read_all(reader, pieces(encoded, [place * 997 for place in places]))
    assert_same(blocks, records, unclosed, width)
    assert reader.decoder.undecodable == 0


def read_all(reader, parts):
    return [*(block for part in parts for block in reader.feed(part)), *reader.finish()]


def assert_same(blocks, records, unclosed, width):
    if not records:
        assert not blocks
        return
    whole = build_block(records, 1, width, [number - 1 for number in unclosed])
    assert pa.Table.from_batches([block.columns for block in blocks]).to_pydict() == whole.columns.to_pydict()
    following = 1
    for block in blocks:
        assert block.first_record == following
        following += block.columns.num_rows
    for name in ("long_rows", "short_rows", "unclosed"):
        found = [row + block.first_record - 1 for block in blocks for row in getattr(block, name)]
        assert found == list(getattr(whole, name))


@examples(100)
@given(st.binary(max_size=200) | texts.map(str.encode) | texts.map(lambda text: text.encode("utf-16")), st.booleans())
def test_any_bytes_are_read_or_refused_with_an_importer_error(sample, is_whole):
    try:
        if detect_file_type(sample, is_whole=is_whole) in {FileType.EXCEL, *RECORD_TYPES}:
            return
    except InvalidRequest as error:
        if error.code not in {"file_empty", "unsupported_format"}:
            raise
        return
    found = detect_delimiters(sample, is_whole=is_whole)
    assert 0 <= found.confidence <= 1
    delimiters = parse_delimiters(found.delimiters.field, quote=found.delimiters.quote, record=found.record_separator)
    assert delimiters == found.delimiters
    reader = BlockReader(found.delimiters, found.encoding, 3)
    blocks = [*reader.feed(sample), *reader.finish()]
    assert all(block.columns.num_columns == 3 for block in blocks)


@examples(100)
@given(st.binary(max_size=120), cuts, st.integers(1, 3))
@example(b"a,\xc3\nb,\xa9\n", [3], 2)
@example("a,€\n".encode()[:-2], [], 2)
def test_undecodable_bytes_become_replacement_characters_for_any_chunks(content, places, width):
    reader = BlockReader(Delimiters(), "utf-8", width)
    blocks = [block for piece in pieces(content, places) for block in reader.feed(piece)]
    blocks += reader.finish()
    text = content.decode("utf-8", "replace")
    assert_same(blocks, *exactly(text.removeprefix("\ufeff"), Delimiters()), width)
    genuine = content.decode("utf-8", "ignore").count("\ufffd")
    assert reader.decoder.undecodable == text.count("\ufffd") - genuine


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_any_separators_are_accepted_or_refused(field, quote, record):
    try:
        delimiters = parse_delimiters(field or ",", quote=quote, record=record)
    except InvalidParameter:
        return
    assert delimiters.field
    assert delimiters.record
    assert delimiters.quote is None or len(delimiters.quote) == 1
    assert delimiters.record not in delimiters.field
    reader = RecordReader(delimiters)
    reader.feed(f"a{field}b{record}{quote}c{quote}{record}", final=True)
