"""Decompression of streams, container files and malicious files."""

import bz2
import collections
import gzip
import io
import json
import lzma
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import cramjam
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queryserver.errors.files import (
    CodecNotAvailable,
    DecompressionFailed,
    DecompressionLimit,
    EntryChanged,
    FileTooComplex,
)
from queryserver.formats.avro import AvroFile
from queryserver.formats.parquet import parquet_lines
from queryserver.formats.unpacking import LOOK_BACK_BYTES, Codec, Unpacker, Window, detect_codec, head_bytes, unpacker
from queryserver.workbooks.reader import ProcessWorkbooks

AVRO = Path(__file__).parent / "avro"
TEXT = "".join(f"line {number}: häßlich\n" for number in range(20_000)).encode()
LIMIT = 64 * 1024 * 1024


def framed(content: bytes) -> bytes:
    """Compress with Snappy's framing format: one uncompressed chunk, one skippable chunk, and compressed chunks."""
    start = b"\xff\x06\x00\x00sNaPpY"
    pieces = [content[place : place + 65536] for place in range(0, len(content), 65536)]
    chunks = [bytes(cramjam.snappy.compress(piece))[len(start) :] for piece in pieces]
    plain = chunks[0][4:8] + pieces[0]
    chunks[0] = b"\x01" + len(plain).to_bytes(3, "little") + plain
    return start + b"\x80\x03\x00\x00abc" + b"".join(chunks)


def raw(content: bytes) -> bytes:
    return pa.Codec("snappy").compress(content, asbytes=True)


def hadoop(content: bytes) -> bytes:
    """Compress with Hadoop's Snappy format: blocks of 256 KiB, each in chunks of 64 KiB."""
    made = b""
    for start in range(0, len(content), 256 * 1024):
        block = content[start : start + 256 * 1024]
        made += len(block).to_bytes(4, "big")
        for inner in range(0, len(block), 65536):
            part = raw(block[inner : inner + 65536])
            made += len(part).to_bytes(4, "big") + part
    return made


PACKED = {
    "gzip": (Codec.GZIP, "a.gz", gzip.compress(TEXT)),
    "gzip of two members and padding": (
        Codec.GZIP,
        "a.GZ",
        gzip.compress(TEXT[:1000]) + bytes(600) + gzip.compress(TEXT[1000:]) + bytes(600),
    ),
    "bz2": (Codec.BZ2, "a.bz2", bz2.compress(TEXT)),
    "bz2 of two streams": (Codec.BZ2, "a.bzip2", bz2.compress(TEXT[:1000]) + bz2.compress(TEXT[1000:])),
    "snappy, framed": (Codec.SNAPPY, "a.sz", framed(TEXT)),
    "snappy, raw": (Codec.SNAPPY, "a.snappy", raw(TEXT)),
    "snappy of hadoop": (Codec.SNAPPY, "a.snappy", hadoop(TEXT)),
}
each_packed = pytest.mark.parametrize(("codec", "name", "packed"), PACKED.values())


def opened(codec: Codec, packed: bytes) -> Unpacker:
    made = unpacker(codec, size_bytes=len(packed), limit_bytes=LIMIT)
    assert made is not None
    return made


def pieces(codec: Codec, packed: bytes, *, fed: int = 65536) -> Iterator[bytes]:
    if codec is Codec.AVRO:
        yield from AvroFile(io.BytesIO(packed)).lines()
        return
    one = opened(codec, packed)
    for start in range(0, len(packed), fed):
        yield from one.feed(packed[start : start + fed])
    yield from one.end()


def whole(value: int) -> bytes:
    """Encode an Avro int or long."""
    value = (value << 1) ^ (value >> 63)
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def avro(schema: object, blocks: list[tuple[int, bytes]], *, codec: str = "null") -> bytes:
    """Build an Avro container file; each block is given by its declared record count and its bytes."""
    text = schema if isinstance(schema, str) and schema not in {"long", "bytes"} else orjson.dumps(schema).decode()
    metadata = {b"avro.schema": text.encode(), b"avro.codec": codec.encode()}
    made = b"Obj\x01" + whole(len(metadata))
    for key, value in metadata.items():
        made += whole(len(key)) + key + whole(len(value)) + value
    made += b"\0" + b"s" * 16
    for count, content in blocks:
        made += whole(count) + whole(len(content)) + content + b"s" * 16
    return made


def record(name: str, fields: int, kind: object) -> dict[str, object]:
    """Return a record schema with `fields` fields of the same type."""
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": kind} for n in range(fields)]}


def again(name: str, kind: object, named: str) -> dict[str, object]:
    """Return a record schema with ten fields of one type, which the first field declares and the others reference by
    name.
    """
    made = record(name, 10, named)
    made["fields"][0]["type"] = kind
    return made


async def refused(workbooks: ProcessWorkbooks, packed: bytes, *errors: type[Exception]) -> None:
    """Expect one of the errors, whether the worker refuses the file or crashes while reading it."""

    async def file() -> AsyncGenerator[bytes]:
        yield packed

    with pytest.raises(errors):
        [made async for made in workbooks.avro_lines(file())]


def parquet(table: pa.Table, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file


class TestStreams:
    @pytest.mark.storage(44)
    @each_packed
    def test_packed_file_is_recognized_and_unpacked_completely(self, codec: Codec, name: str, packed: bytes):
        assert detect_codec(name, packed[: head_bytes(name)], len(packed)) is codec
        assert b"".join(pieces(codec, packed)) == TEXT

    @each_packed
    def test_stream_is_unpacked_at_any_chunk_boundary(self, codec: Codec, name: str, packed: bytes):
        assert b"".join(pieces(codec, packed, fed=997)) == TEXT
        small = packed[:50]
        one = opened(codec, packed)
        for byte in small:
            list(one.feed(bytes([byte])))
        assert b"".join([*one.feed(packed[50:]), *one.end()])[-20:] == TEXT[-20:]

    @each_packed
    def test_unpacked_chunks_are_small(self, codec: Codec, name: str, packed: bytes):
        assert max(map(len, pieces(codec, packed))) <= 64 * 1024

    @each_packed
    def test_truncated_stream_is_an_error(self, codec: Codec, name: str, packed: bytes):
        with pytest.raises(DecompressionFailed):
            list(pieces(codec, packed[:-700]))

    @each_packed
    def test_flipped_bit_is_an_error(self, codec: Codec, name: str, packed: bytes):
        broken = bytearray(packed)
        place = 12 if codec is Codec.SNAPPY and "framed" not in name else len(packed) // 2
        if name == "a.snappy":
            broken[0] ^= 0x40  # there is no checksum, so only the length can reveal the damage
        broken[place] ^= 0x10
        with pytest.raises(DecompressionFailed):
            list(pieces(codec, bytes(broken)))

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.BZ2, Codec.SNAPPY, Codec.AVRO])
    @pytest.mark.parametrize("content", [b"", b"just text\n", b"id,name\n" * 5000])
    def test_content_not_packed_by_the_codec_is_an_error(self, codec: Codec, content: bytes):
        with pytest.raises(DecompressionFailed):
            list(pieces(codec, content))

    def test_empty_content_is_valid(self):
        for codec, packed in ((Codec.GZIP, gzip.compress(b"")), (Codec.BZ2, bz2.compress(b"")), (Codec.SNAPPY, b"\0")):
            assert b"".join(pieces(codec, packed)) == b""

    @pytest.mark.security("S10")
    @pytest.mark.storage(45)
    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.BZ2])
    def test_decompression_bomb_is_stopped_in_bounded_memory(self, codec: Codec):
        content = bytes(80 * 1024 * 1024)
        packed = gzip.compress(content, 9) if codec is Codec.GZIP else bz2.compress(content)
        del content
        window = Window(LIMIT, 4096, LIMIT)
        tracemalloc.start()
        with pytest.raises(DecompressionLimit, match=str(LIMIT)):
            collections.deque(map(window.take, pieces(codec, packed)), maxlen=0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 * 1024 * 1024

    @pytest.mark.security("S10")
    def test_snappy_block_claiming_too_much_is_not_unpacked(self):
        length = b"\xff\xff\xff\xff\x0f"
        with pytest.raises((DecompressionLimit, DecompressionFailed)):
            list(pieces(Codec.SNAPPY, length + raw(b"x" * 100)[1:]))
        one = unpacker(Codec.SNAPPY, size_bytes=len(raw(TEXT)), limit_bytes=1000)
        assert one is not None
        with pytest.raises(DecompressionLimit):
            [*one.feed(raw(TEXT)), *one.end()]

    def test_frame_with_a_wrong_checksum_is_rejected(self):
        content = bytearray(framed(TEXT[:100]))
        content[-1] ^= 1
        with pytest.raises(DecompressionFailed, match="checksum"):
            list(pieces(Codec.SNAPPY, bytes(content)))


class TestDetection:
    @pytest.mark.storage(44)
    @pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.bzip2", "a.avro", "a.snappy", "a.sz", "a.txt", "a.parquet"])
    @pytest.mark.parametrize("head", [b"id,name\n1,blue pen\n", b"", b"hello", b"x", b"# a title\n"])
    def test_plain_text_is_recognized_under_any_name(self, name: str, head: bytes):
        assert detect_codec(name, head, len(head)) is Codec.NONE

    def test_magic_bytes_alone_suffice_for_parquet_only(self):
        assert detect_codec("a", gzip.compress(b"x"), 30) is Codec.NONE
        assert detect_codec("a.txt", bz2.compress(b"x"), 30) is Codec.NONE
        assert detect_codec("a.txt", b"Obj\x01", 30) is Codec.NONE
        assert detect_codec("a", b"PAR1\x15", 30) is Codec.PARQUET


class TestWindow:
    @pytest.mark.parametrize("cut", [1, 7, 1000, 10**6])
    def test_window_holds_the_requested_bytes_and_a_small_margin(self, cut: int):
        window = Window(10_000, 500, LIMIT)
        for start in range(0, len(TEXT), cut):
            window.take(TEXT[start : start + cut])
            if window.is_full:
                break
        found = window.excerpt()
        assert found.requested == TEXT[10_000:10_500]
        assert found.before == TEXT[10_000 - LOOK_BACK_BYTES : 10_000]
        assert found.start == TEXT[:4]
        assert len(found.content) == 508
        assert not found.is_last

    def test_limit_counts_unpacked_bytes(self):
        window = Window(90, 20, 100)
        window.take(bytes(100))
        with pytest.raises(DecompressionLimit):
            window.take(b"x")
        ends_before = Window(90, 20, 100)
        ends_before.take(bytes(95))
        assert len(ends_before.excerpt().requested) == 5
        fits = Window(80, 20, 100)
        fits.take(bytes(200))
        assert len(fits.excerpt().requested) == 20


class TestAvro:
    @pytest.mark.storage(44)
    @pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz", "zstandard"])
    def test_files_of_another_writer_are_read_in_every_codec(self, codec: str):
        """The files were written by fastavro and contain every type and every logical type."""
        packed = (AVRO / f"{codec}.avro").read_bytes()
        assert detect_codec("a.avro", packed[: head_bytes("a.avro")], len(packed)) is Codec.AVRO
        lines = b"".join(pieces(Codec.AVRO, packed)).decode().splitlines()
        assert lines == (AVRO / "rows.jsonl").read_text().splitlines()
        second = json.loads(lines[1])
        assert list(second)[:4] == ["id", "name", "ok", "f"]
        assert second["id"] == -1_000_000_000
        assert second["name"] == 'na"me é 1\n'
        assert second["f"] == 0.1
        assert second["g"] == "NaN"
        assert second["raw"] == "Af8="
        assert second["price"] == "-1.25"
        assert second["day"] == "2024-01-31"
        assert second["clock"] == "10:20:30.000005"
        assert second["at"] == "2024-01-31 10:20:30.120000+00:00"
        assert second["local"] == "1969-12-31 23:59:59.500000"
        assert json.loads(lines[2])["inner"]["again"] == {"x": 3, "suit": "HEARTS", "again": None}

    @pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz", "zstandard"])
    def test_truncated_or_altered_blocks_are_errors(self, codec: str):
        packed = (AVRO / f"{codec}.avro").read_bytes()
        with pytest.raises(DecompressionFailed):
            list(pieces(Codec.AVRO, packed[:-5]))
        header = packed.index(packed[-16:]) + 16
        for kept in (0, 3, 4, 30, header - 1, header + 1):
            with pytest.raises(DecompressionFailed):
                list(pieces(Codec.AVRO, packed[:kept]))
        broken = bytearray(packed)
        broken[-10] ^= 1
        with pytest.raises(DecompressionFailed):
            list(pieces(Codec.AVRO, bytes(broken)))

    def test_unknown_codec_is_an_error(self):
        with pytest.raises(CodecNotAvailable, match="lz77"):
            list(pieces(Codec.AVRO, avro("long", [(1, b"\x02")], codec="lz77")))

    def test_values_other_than_records_are_read(self):
        assert b"".join(pieces(Codec.AVRO, avro("long", [(2, b"\x02\x03")]))) == b"1\n-2\n"

    @pytest.mark.slow
    @pytest.mark.security("S10")
    async def test_records_growing_in_memory_are_stopped_by_the_worker_limit(self):
        multiplied: object = "null"
        for level in range(12):
            name = f"r{level}"
            multiplied = record(name, 10, multiplied) if level == 0 else again(name, multiplied, f"r{level - 1}")
        endless = whole(2**40) + b"\0"
        nulls = {"type": "array", "items": "null"}
        async with ProcessWorkbooks() as workbooks:
            await refused(workbooks, avro(nulls, [(1, endless)]), FileTooComplex)
            await refused(workbooks, avro({**nulls, "items": record("a", 50, "null")}, [(1, endless)]), FileTooComplex)
            await refused(workbooks, avro(multiplied, [(1, b"")]), FileTooComplex)

    @pytest.mark.security("S10")
    async def test_deep_nesting_is_stopped_by_the_worker_limit(self):
        chain = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
        nested = '{"type":"array","items":' * 5000 + '"null"' + "}" * 5000
        async with ProcessWorkbooks() as workbooks:
            deep = avro(chain, [(1, b"\x02" * 1_000_000 + b"\0")])
            await refused(workbooks, deep, FileTooComplex, DecompressionFailed)
            await refused(workbooks, avro(nested, [(1, b"\0")]), FileTooComplex, DecompressionFailed)

    @pytest.mark.security("S10")
    async def test_block_unpacking_to_gigabytes_is_stopped(self):
        part = bytes(16 * 1024 * 1024)
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        bombs = {
            "deflate": (deflate.compress(part) + deflate.flush(zlib.Z_FULL_FLUSH)) * 128 + deflate.flush(),
            "xz": lzma.compress(part) * 128,
            "zstandard": pa.Codec("zstd").compress(part, asbytes=True) * 128,
            "snappy": b"\xff\xff\xff\xff\x0f" + raw(b"x" * 100)[1:],
        }
        async with ProcessWorkbooks() as workbooks:
            for codec, bomb in bombs.items():
                packed = avro("bytes", [(1, bomb)], codec=codec)
                await refused(workbooks, packed, FileTooComplex, DecompressionFailed)

    @pytest.mark.parametrize("schema",
        ["", "{", "nonsense", '{"type": "record"}', '{"type": "fixed", "name": "f", "size": -1}', '["null", 7]',
        "[]"])  # fmt: skip
    def test_broken_schemas_are_errors(self, schema: str):
        with pytest.raises(DecompressionFailed):
            list(pieces(Codec.AVRO, avro(schema, [(1, b"\0")])))

    @pytest.mark.parametrize(
        "block", [(1, b""), (1, b"\x80" * 12), (2, b"\x02"), (1, b"\x02\x02"), (-1, b"\x02"), (1, b"\xff\xff")]
    )
    def test_broken_blocks_are_errors(self, block: tuple[int, bytes]):
        with pytest.raises(DecompressionFailed):
            list(pieces(Codec.AVRO, avro("long", [block])))

    def test_names_are_resolved_in_their_namespaces(self):
        inner = {"type": "enum", "name": "E", "namespace": "x", "symbols": ["A", "B"]}
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": "x.E"}, {"name": "c", "type": "R2"}]
        fields[2]["type"] = {"type": "record", "name": "x.R2", "fields": [{"name": "d", "type": "E"}]}
        schema = {"type": "record", "name": "R", "namespace": "y", "fields": fields}
        lines = b"".join(pieces(Codec.AVRO, avro(schema, [(1, b"\x00\x02\x02")])))
        assert lines == b'{"a":"A","b":"B","c":{"d":"B"}}\n'

    @pytest.mark.parametrize("value", [2**62, -(2**62)])
    def test_times_beyond_the_calendar_are_numbers(self, value: int):
        schema = {"type": "long", "logicalType": "timestamp-micros"}
        assert b"".join(pieces(Codec.AVRO, avro(schema, [(1, whole(value))]))) == b"%d\n" % value


class TestParquet:
    @pytest.mark.storage(44)
    def test_rows_are_lines_with_keys_in_column_order(self):
        table = pa.table(
            {
                "z": pa.array([1, None], pa.int64()),
                "a": ['é\n"', None],
                "price": pa.array([None, "1.50"]).cast(pa.decimal128(9, 2)),
                "raw": [b"ab", None],
                "tags": [["x", "y"], []],
                "at": pa.array([0, 1_500_000], pa.timestamp("us")),
                "deep": [{"q": 1, "w": {"e": None}}, None],
                "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
            }
        )
        lines = b"".join(parquet_lines(parquet(table, row_group_size=1))).decode().splitlines()
        assert lines == [
            (
                '{"z":1,"a":"é\\n\\"","price":null,"raw":"YWI=","tags":["x","y"],"at":"1970-01-01 00:00:00"'
                ',"deep":{"q":1,"w":{"e":null}},"map":{"k":1}}'
            ),
            (
                '{"z":null,"a":null,"price":"1.50","raw":null,"tags":[],"at":"1970-01-01 00:00:01.500000"'
                ',"deep":null,"map":{}}'
            ),
        ]

    @pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
    def test_every_page_codec_is_read(self, codec: str):
        table = pa.table({"n": range(3000), "s": [f"text {n % 7}" for n in range(3000)]})
        lines = b"".join(parquet_lines(parquet(table, compression=codec, row_group_size=700))).splitlines()
        assert [json.loads(line) for line in lines] == table.to_pylist()

    def test_file_without_rows_gives_no_lines(self):
        assert b"".join(parquet_lines(parquet(pa.table({"a": pa.array([], pa.int32())})))) == b""

    @pytest.mark.security("S10")
    def test_long_text_repeated_in_many_rows_is_in_memory_once(self):
        text = "x" * (1024 * 1024)
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), [text])
        before = pa.total_allocated_bytes()
        most = 0
        for made, _ in zip(parquet_lines(parquet(pa.table({"s": column}))), range(200), strict=False):
            most = max(most, pa.total_allocated_bytes() - before)
            assert len(made) <= 64 * 1024
        assert most < 32 * 1024 * 1024

    @pytest.mark.parametrize("cut", [0, 3, 8, 100])
    def test_broken_files_are_errors(self, cut: int):
        content = parquet(pa.table({"a": range(1000)})).getvalue()
        with pytest.raises(DecompressionFailed):
            list(parquet_lines(io.BytesIO(content[: len(content) - cut] if cut else b"PAR1" + bytes(100))))

    def test_errors_raised_by_the_file_propagate(self):
        class Gone(io.BytesIO):
            def read(self, *_):
                raise EntryChanged("It was changed.")

        with pytest.raises(EntryChanged):
            list(parquet_lines(Gone(parquet(pa.table({"a": [1]})).getvalue())))


HERE = Path(__file__).parent


@pytest.mark.storage(44)
def test_index_without_a_dictionary_is_broken_data() -> None:
    """The dictionary page of the file has lost its values, which Arrow notices only when it uses the dictionary."""
    content = (HERE / "parquet" / "index_out_of_bounds.parquet").read_bytes()
    with pytest.raises(DecompressionFailed):
        list(parquet_lines(io.BytesIO(content)))
