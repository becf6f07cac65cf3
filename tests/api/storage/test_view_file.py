"""Viewing files with `view=` and `display` (Contract storage 5.3)."""

import bz2
import gzip
import io
import os
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.driving import Caller, open_api, verdict
from tests.api.serving import served
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.worlds import builders
from tests.fakes.storage_reads import OddFileSystem, Oddity

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import StorageUnavailable
from queryserver.files.model import Scheme

AVRO = Path(__file__).parents[2] / "unit" / "formats" / "avro"
MIB = 1024 * 1024


def put(files: Files, path: str, content: bytes) -> str:
    """Create a file; return its normalized path."""
    (files.root / path).write_bytes(content)
    return f"file:///{path}"


async def view(ana: Caller, path: str, **query: object) -> dict:
    answer = await ana.get(f"storage/view={path}", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def display(ana: Caller, path: str, **query: object) -> dict:
    answer = await ana.get("storage/display", path=path, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


class TestShapes:
    async def test_display_returns_all_fields(self, ana, files, folder):
        path = put(files, f"{folder}/a.csv", b"id,name\n")
        assert await display(ana, path) == {
            "status": 0, "path": path, "contents": "id,name\n", "offset": 0, "length": 4096, "end": 8,
            "mode": "text", "compression": "none",
        }  # fmt: skip

    @pytest.mark.storage(39)
    async def test_view_returns_content_and_attributes(self, ana, files, folder):
        path = put(files, f"{folder}/a b.csv", b"id,name\n")
        body = await view(ana, f"file:///{folder}/a%20b.csv")
        assert body["contents"] == body["view"]["contents"] == "id,name\n"
        assert (body["status"], body["success"], body["filename"]) == (0, True, "a b.csv")
        assert (body["path"], body["name"], body["type"], body["rwx"][0]) == (path, "a b.csv", "file", "-")
        assert body["stats"]["size"] == 8
        assert (body["editable"], body["show_download_button"], body["is_embeddable"]) == (True, True, False)
        assert [crumb["label"] for crumb in body["breadcrumbs"]] == ["file:///", *folder.split("/"), "a b.csv"]
        assert body["view"] == {
            "offset": 0, "length": 4096, "end": 8, "dirname": f"file:///{folder}", "mode": "text",
            "compression": "none", "size": 8, "max_chunk_size": "1048576", "contents": "id,name\n",
            "masked_binary_data": False,
        }  # fmt: skip
        assert (await view(ana, f"file:///{folder}/a%20b.csv", is_embeddable="true"))["is_embeddable"] is True

    @pytest.mark.storage(40)
    async def test_specified_view_call_works(self, ana, files, folder):
        path = put(files, f"{folder}/a.txt", "häßlich\n".encode())
        body = await view(ana, path, offset=0, length=204800, compression="none", mode="text")
        assert body["view"]["contents"] == "häßlich\n"
        assert (body["view"]["length"], body["view"]["end"]) == (204800, 10)

    async def test_large_files_are_not_editable(self, ana, files, folder):
        edge = put(files, f"{folder}/edge", b"x" * 262143)
        above = put(files, f"{folder}/above", b"x" * 262144)
        assert (await view(ana, edge))["editable"] is True
        assert (await view(ana, above))["editable"] is False

    async def test_begin_and_end_are_one_based_and_inclusive(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"0123456789")
        for body in (await view(ana, path, begin=3, end=5), await view(ana, path, begin=3, end=5, offset=9, length=1)):
            assert body["contents"] == "234"
            assert (body["view"]["offset"], body["view"]["length"], body["view"]["end"]) == (2, 3, 5)
        assert (await display(ana, path, end=4))["contents"] == "0123"
        assert (await display(ana, path, begin=3))["contents"] == "0123456789"

    @pytest.mark.storage(41)
    @pytest.mark.parametrize("query", [{"length": 2**20 + 1}, {"length": 10**30}, {"begin": 1, "end": 10**30}], ids=str)
    async def test_window_length_is_capped_at_the_maximum(self, ana, files, folder, query):
        path = put(files, f"{folder}/a", b"x" * (2**20 + 5))
        shown = (await ana.get(f"storage/view={path}", **query)).json()["view"]
        assert (shown["length"], shown["end"], len(shown["contents"])) == (2**20, 2**20, 2**20)

    async def test_window_past_the_end_is_empty(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"0123456789")
        for offset in (10, 11, 10**12, 2**63 - 1):
            body = await display(ana, path, offset=offset)
            assert (body["contents"], body["offset"], body["end"]) == ("", offset, offset)
            assert (await view(ana, path, offset=offset))["contents"] == ""

    async def test_empty_file_is_shown(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"")
        body = await view(ana, path)
        assert (body["contents"], body["view"]["mode"], body["editable"]) == ("", "text", True)
        assert (await display(ana, path))["end"] == 0

    async def test_head_requests_succeed(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"abc")
        assert (await ana.send("HEAD", f"storage/view={path}")).status_code == 200
        assert (await ana.send("HEAD", "storage/display", params={"path": path})).status_code == 200


class TestRefusals:
    @pytest.mark.storage(41)
    @pytest.mark.parametrize(
        "query",
        [
            {"length": "-1"}, {"offset": "-1"}, {"offset": "x"}, {"begin": "5", "end": "4"},
            {"begin": "0", "end": "4"}, {"begin": "0"}, {"end": "0"},
            {"mode": "hex"}, {"compression": "zip"}, {"encoding": "utf-7"}, {"encoding": "../utf-8"},
        ],
        ids=str,
    )  # fmt: skip
    async def test_invalid_parameters_are_refused(self, ana, files, folder, query):
        path = put(files, f"{folder}/a", b"0123456789")
        for answer in (
            await ana.get(f"storage/view={path}", **query),
            await ana.get("storage/display", path=path, **query),
        ):
            assert verdict(answer) == (400, -1, "invalid_parameter")

    async def test_display_refuses_binary_mode(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"0123456789")
        refused = await ana.get("storage/display", path=path, mode="binary")
        assert verdict(refused) == (400, -1, "invalid_parameter")

    async def test_directories_and_missing_files_are_refused(self, ana, folder):
        assert verdict(await ana.get("storage/display", path=f"file:///{folder}")) == (400, -1, "not_a_file")
        assert verdict(await ana.get("storage/display")) == (400, -1, "not_a_file")
        missing = await ana.get("storage/display", path=f"file:///{folder}/none")
        assert verdict(missing) == (404, -1, "path_not_found")
        assert verdict(await ana.get(f"storage/view=file:///{folder}/none")) == (404, -1, "path_not_found")

    @pytest.mark.security("S1")
    @pytest.mark.parametrize("dots", ["%2e%2e", "%252e%252e", "%2E%2e", "%2e%252e"])
    async def test_dot_segments_never_reach_a_file(self, ana, folder, dots):
        refused = await ana.get(f"storage/view=file:///{folder}/{dots}/a")
        assert verdict(refused) == (400, -1, "invalid_path")
        plain = await ana.get("storage/display", path=f"file:///{folder}/../a")
        assert verdict(plain) == (400, -1, "invalid_path")


class TestText:
    @pytest.mark.storage(42)
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030", "shift_jis", "big5"])
    async def test_consecutive_windows_lose_no_text(self, ana, files, folder, encoding):
        text = "中文日本 text\n" * 3 + ("é😀" if encoding in {"utf-8", "utf-16", "gb18030"} else "")
        path = put(files, f"{folder}/a", text.encode(encoding))
        offset, found = 0, ""
        while offset < len(text.encode(encoding)):
            body = await display(ana, path, offset=offset, length=7, encoding=encoding.upper())
            assert body["end"] > offset
            found, offset = found + body["contents"], body["end"]
        assert found == text

    async def test_distant_windows_decode_at_character_boundaries(self, ana, files, folder):
        text = "日本語" * 100_000
        path = put(files, f"{folder}/a", text.encode("utf-16"))
        body = await display(ana, path, offset=300_001, length=10, encoding="utf-16")
        assert body["contents"] == text[150_000:150_004]
        assert body["end"] == 300_010
        path = put(files, f"{folder}/b", text.encode())
        assert (await display(ana, path, offset=300_001, length=8))["contents"] == "語日"

    @pytest.mark.storage(43)
    async def test_binary_content_is_shown_as_hex(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"Hi\xff\xfe!")
        body = await view(ana, path)
        assert (body["contents"], body["editable"]) == ("", False)
        assert body["view"]["mode"] == "binary"
        assert body["view"]["xxd"] == [[0, [[72, 105], [255, 254], [33]], "Hi..!"]]
        assert verdict(await ana.get("storage/display", path=path)) == (422, -1, "not_text")
        shown = await view(ana, path, mode="text")
        assert (shown["contents"], shown["view"]["masked_binary_data"]) == ("Hi\ufffd\ufffd!", True)
        assert "xxd" not in shown["view"]

    async def test_zero_bytes_make_content_binary(self, ana, files, folder):
        path = put(files, f"{folder}/a", b"Hi\0!")
        assert (await view(ana, path))["view"]["xxd"] == [[0, [[72, 105], [0, 33]], "Hi.!"]]

    async def test_binary_mode_shows_the_stored_bytes(self, ana, files, folder):
        packed = gzip.compress(b"hello")
        path = put(files, f"{folder}/a.gz", packed)
        body = await view(ana, path, mode="binary", offset=1, length=20)
        assert body["view"]["compression"] == "none"
        assert body["view"]["end"] == 21
        assert [line[0] for line in body["view"]["xxd"]] == [1, 17]
        assert bytes(byte for line in body["view"]["xxd"] for word in line[1] for byte in word) == packed[1:21]

    async def test_large_binary_window_is_shown(self, ana, files, folder):
        path = put(files, f"{folder}/a", bytes(range(256)) * 512)
        body = await view(ana, path, offset=16, length=65536)
        assert len(body["view"]["xxd"]) == 4096
        assert body["view"]["xxd"][-1][0] == 65536

    @pytest.mark.security("T31")
    async def test_html_is_returned_as_json(self, ana, files, folder):
        path = put(files, f"{folder}/a.html", b"<script>alert(1)</script>")
        answer = await ana.get("storage/display", path=path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"


PLAIN = b"".join(b"line %d\n" % number for number in range(20_000))


class TestPacked:
    @pytest.mark.storage(44)
    @pytest.mark.parametrize(
        ("name", "packed", "codec"),
        [
            ("a.gz", gzip.compress(PLAIN), "gzip"),
            ("a.bz2", bz2.compress(PLAIN), "bz2"),
            ("a.snappy", pa.Codec("snappy").compress(PLAIN, asbytes=True), "snappy"),
        ],
    )
    async def test_compressed_files_are_shown_decompressed(self, ana, files, folder, name, packed, codec):
        path = put(files, f"{folder}/{name}", packed)
        for query in ({}, {"compression": codec}):
            body = await view(ana, path, length=14, **query)
            assert (body["contents"], body["view"]["compression"]) == ("line 0\nline 1\n", codec)
            assert body["view"]["size"] == len(packed)
        body = await display(ana, path, offset=150_000, length=20)
        assert body["contents"].encode() == PLAIN[150_000:150_020]
        assert (body["compression"], body["end"]) == (codec, 150_020)
        assert (await display(ana, path, offset=len(PLAIN) - 5))["contents"].encode() == PLAIN[-5:]
        assert (await display(ana, path, offset=len(PLAIN) + 5))["contents"] == ""
        assert (await ana.get("storage/display", path=path, compression="none")).status_code in {200, 422}

    @pytest.mark.storage(44)
    async def test_avro_and_parquet_are_shown_as_json_lines(self, ana, files, folder):
        lines = (AVRO / "rows.jsonl").read_bytes()
        path = put(files, f"{folder}/a.avro", (AVRO / "deflate.avro").read_bytes())
        body = await display(ana, path, offset=100, length=1000)
        assert body["contents"].encode() == lines[100:1100]
        assert body["compression"] == "avro"
        file = io.BytesIO()
        pq.write_table(pa.table({"id": range(100_000), "name": ["blue pen"] * 100_000}), file, row_group_size=10_000)
        path = put(files, f"{folder}/b", file.getvalue())
        body = await display(ana, path, length=60)
        assert body["contents"].startswith('{"id":0,"name":"blue pen"}\n{"id":1,')
        assert body["compression"] == "parquet"
        made = "".join(f'{{"id":{number},"name":"blue pen"}}\n' for number in range(100_000))
        assert (await display(ana, path, offset=2_000_000, length=1000))["contents"] == made[2_000_000:2_001_000]

    @pytest.mark.storage(44)
    async def test_plain_text_is_shown_regardless_of_its_extension(self, ana, files, folder):
        for name in ("a.gz", "a.bz2", "a.avro", "a.snappy", "a.parquet"):
            path = put(files, f"{folder}/{name}", b"only text\n")
            body = await display(ana, path)
            assert (body["contents"], body["compression"]) == ("only text\n", "none")
            for codec in ("gzip", "bz2", "avro", "parquet", "snappy"):
                refused = await ana.get("storage/display", path=path, compression=codec)
                assert verdict(refused) == (422, -1, "decompression_failed")
                assert verdict(await ana.get(f"storage/view={path}", compression=codec))[0] == 422

    async def test_corrupt_files_return_422(self, ana, files, folder):
        path = put(files, f"{folder}/a.gz", gzip.compress(PLAIN)[:-100])
        assert verdict(await ana.get("storage/display", path=path, offset=len(PLAIN) - 10)) == (
            422, -1, "decompression_failed",
        )  # fmt: skip
        path = put(files, f"{folder}/b", b"PAR1" + bytes(1000) + b"PAR1")
        assert verdict(await ana.get("storage/display", path=path)) == (422, -1, "decompression_failed")

    @pytest.mark.storage(45)
    @pytest.mark.security("S10")
    async def test_decompression_stops_at_the_limit(self, ana, files, folder):
        path = put(files, f"{folder}/a.gz", gzip.compress(bytes(70 * MIB)))
        assert verdict(await ana.get("storage/display", path=path, offset=64 * MIB)) == (413, -1, "decompression_limit")
        early = await view(ana, path, offset=MIB, length=16)
        assert early["view"]["xxd"] == [[MIB, [[0, 0]] * 8, "." * 16]]


class TestStores:
    @pytest.fixture
    async def odd(self, tmp_path, database_dsn):
        store = OddFileSystem()
        settings = storage_settings(tmp_path, database_dsn, max_snappy_decompression_size=1000)
        async with open_api(settings, builders({Scheme.HDFS: store})) as api:
            yield store, await api.user()

    async def test_window_deep_in_a_large_file_is_read_directly(self, odd):
        store, ana = odd
        store.odd["large.txt"] = Oddity(2**41)
        body = await display(ana, "/large.txt", offset=2**40, length=16)
        assert body["contents"] == "0123456789abcde\n"

    async def test_snappy_files_above_the_limit_are_not_decompressed(self, odd):
        store, ana = odd
        store.tree.put("a.snappy", pa.Codec("snappy").compress(b"id\n" * 1000, asbytes=True))
        assert (await display(ana, "/a.snappy", length=6))["contents"] == "id\nid\n"
        store.tree.put("b.snappy", pa.Codec("snappy").compress(os.urandom(2000), asbytes=True))
        refused = await ana.get("storage/display", path="/b.snappy", compression="snappy")
        assert verdict(refused) == (413, -1, "decompression_limit")

    @pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.parquet"])
    @pytest.mark.parametrize(
        ("failure", "expected"),
        [
            (StorageUnavailable("It is down."), (503, "storage_unavailable")),
            (PermissionDenied("No."), (403, "permission_denied")),
        ],
    )
    async def test_store_failures_are_reported(self, odd, name, failure, expected):
        store, ana = odd
        start = {"a.txt": b"x" * 16, "a.gz": gzip.compress(b"x")[:16], "a.parquet": b"PAR1" + bytes(12)}[name]
        store.odd[name] = Oddity(100_000, sent_bytes=16, failure=failure, pattern=start)
        for answer in (await ana.get("storage/display", path=f"/{name}"), await ana.get(f"storage/view=/{name}")):
            status, _, code = verdict(answer)
            assert (status, code) == expected

    async def test_disconnected_caller_stops_parquet_reading(self, odd):
        store, ana = odd
        store.odd["a.parquet"] = Oddity(100_000, pattern=b"PAR1", pause_s=3.0)
        async with served(ana.api) as address, httpx.AsyncClient(base_url=address, timeout=0.3) as http:
            with pytest.raises(httpx.TimeoutException):
                await http.get("/api/v1/storage/display?path=/a.parquet&compression=parquet", headers=ana.headers)
        store.odd["a.parquet"] = Oddity(100_000, pattern=b"PAR1")
        body = await ana.get("storage/display", path="/a.parquet")
        assert verdict(body) == (422, -1, "decompression_failed")
