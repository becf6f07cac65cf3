"""Rules for all importer calls, and malicious files (Contract importer 2, 14.4, 14.5)."""

import shutil
import time
import tracemalloc
import zipfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.importer.asking import guess, header, preview
from tests.api.importer.conftest import CONTENT, ImporterOpener, importer_settings, refusal, upload, uploaded
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import World, memory_stores, open_world
from tests.fakes.storage_reads import OddFileSystem, Oddity
from tests.fakes.workbook_files import column_xml, sheet_xml, workbook_parts, write_package
from tests.operations import Operation, read_operations

from queryserver.files.model import Scheme
from queryserver.imports.model import PREVIEW_DIALECTS

DIALECTS = f"Valid values: {', '.join(PREVIEW_DIALECTS)}."
CALLS = [one for one in read_operations() if one.group == "importer"]


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


every_call = pytest.mark.parametrize("every", CALLS, ids=name_of)


class TestCaller:
    @pytest.mark.importer(1)
    @every_call
    async def test_unauthenticated_call_gets_the_common_401_response(self, api: Api, every: Operation):
        for path in (every.path, f"{every.path}/"):
            answer = await api.stranger.send(every.method, path)
            assert answer.status_code == 401
            assert answer.json() == {"detail": "Authentication credentials were not provided."}
        bad = Caller(api, "", {"Authorization": "Bearer bad"})
        answer = await bad.send(every.method, every.path)
        assert (answer.status_code, answer.json()["code"]) == (401, "token_not_valid")

    @pytest.mark.importer(1)
    @every_call
    async def test_every_call_accepts_an_optional_trailing_slash(self, ana: Caller, every: Operation):
        for path in (every.path, f"{every.path}/"):
            assert refusal(await ana.send(every.method, path))[0] == 400

    @pytest.mark.importer(60)
    @every_call
    async def test_every_call_requires_the_importer_right(self, api: Api, every: Operation):
        ana = await api.user("ana")
        leave = "delete from group_members where user_id = (select id from users where username = $1)"
        await api.database.execute(leave, ana.username)
        assert refusal(await ana.send(every.method, every.path)) == (403, "permission_denied")

    @pytest.mark.importer(60)
    async def test_administrators_need_no_importer_right(self, api: Api):
        root = await api.user("root", admin=True)
        assert (await upload(root)).status_code == 201

    @pytest.mark.importer(60)
    async def test_disabled_importer_refuses_all_users(self, small_importer: ImporterOpener):
        async with small_importer(is_enabled=False) as api:
            for caller in (await api.user("ana"), await api.user("root", admin=True)):
                for call in CALLS:
                    assert refusal(await caller.send(call.method, call.path)) == (403, "permission_denied")
            assert (await api.stranger.send("POST", "importer/upload/file")).status_code == 401


class TestFailure:
    @pytest.mark.importer(2)
    @every_call
    async def test_wrong_method_response_has_the_importer_format(self, ana: Caller, every: Operation):
        answer = await ana.send("DELETE", every.path)
        assert refusal(answer) == (405, "method_not_allowed")
        assert every.method in answer.headers["allow"]

    async def test_unknown_path_response_has_the_common_format(self, ana: Caller):
        answer = await ana.get("importer/nothing")
        assert (answer.status_code, answer.json()["status"], answer.json()["code"]) == (404, -1, "not_found")

    @pytest.mark.importer(2)
    async def test_internal_error_reveals_no_details(self, tmp_path: Path, database_dsn: str):
        async with open_api(importer_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            await api.database.execute("drop table import_uploads")
            answer = await upload(ana)
            assert answer.status_code == 500
            assert answer.json() == {"error": "Internal error.", "code": "internal_error"}

    @pytest.mark.importer(2)
    async def test_missing_upload_area_returns_500(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            shutil.rmtree(api.services.settings.uploads_dir)
            assert refusal(await upload(ana)) == (500, "storage_unavailable")


class TestFields:
    @pytest.mark.importer(2)
    async def test_last_of_repeated_parameters_counts(self, ana: Caller):
        one = await ana.send("GET", "importer/sql_type_mapping?sql_dialect=nope&sql_dialect=hive")
        assert one.status_code == 200
        other = await ana.send("GET", "importer/sql_type_mapping?sql_dialect=hive&sql_dialect=nope")
        assert refusal(other) == (400, "invalid_dialect")

    @pytest.mark.importer(2)
    @pytest.mark.parametrize(
        ("query", "code", "text"),
        [
            ("", "missing_parameter", "sql_dialect is required."),
            ("sql_dialect=", "missing_parameter", "sql_dialect is required."),
            ("sql_dialect=Hive", "invalid_dialect", f'"Hive" is not a valid choice for sql_dialect. {DIALECTS}'),
            ("sql_dialect=%20hive", "invalid_dialect", f'" hive" is not a valid choice for sql_dialect. {DIALECTS}'),
            ("sql_dialect=hi%00ve", "invalid_parameter", None),
            ("sql_dialect=hive&other=%00", "invalid_parameter", None),
            ("sql_dialect=%FF", "invalid_parameter", None),
        ],
    )
    async def test_error_names_the_invalid_parameter(self, ana: Caller, query: str, code: str, text: str | None):
        answer = await ana.send("GET", f"importer/sql_type_mapping?{query}")
        assert refusal(answer) == (400, code)
        assert text in {None, answer.json()["error"]}

    @pytest.mark.importer(2)
    async def test_unknown_parameters_are_ignored(self, ana: Caller):
        answer = await ana.get("importer/sql_type_mapping", sql_dialect="hive", other="x")
        assert answer.status_code == 200
        sent: Mapping[str, Any] = {"params": {"x": "1"}, "files": {"file": ("a.csv", CONTENT)}}
        assert (await ana.send("POST", "importer/upload/file", **sent)).status_code == 201


KIB = 1024
MIB = 1024 * KIB
SAMPLE = 256 * KIB


class Timed:
    """Fails if its block uses more CPU time in this process than `seconds`. The CPU time of other processes is not
    counted.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_error: object) -> None:
        assert time.process_time() - self._began < self._seconds


class TestText:
    @pytest.mark.importer(50, 61)
    @pytest.mark.parametrize(
        "content",
        [
            b'"' * SAMPLE,
            b"'" * SAMPLE,
            b'"a' * (SAMPLE // 2),
            b'"\n' * (SAMPLE // 2),
            b',"' * (SAMPLE // 2),
            b'" ' * (SAMPLE // 2),
            b"," * SAMPLE,
            b"|" * SAMPLE,
            b"\t" * SAMPLE,
            b" " * (SAMPLE - 1) + b"x",
            b"\n" * SAMPLE + b"x",
            b"\r" * SAMPLE + b"x",
            b"|~" * (SAMPLE // 2),
            b"[" * SAMPLE,
            b"9" * SAMPLE,
            b"1e" * (SAMPLE // 2),
        ],
        ids=lambda content: content[:4],
    )
    async def test_hostile_texts_are_processed_quickly(self, ana: Caller, content: bytes):
        reference = await uploaded(ana, content)
        for ask in (guess, header, preview):
            with Timed(2):
                answer = await ask(ana, reference)
            assert answer.status_code == 200 or refusal(answer)[0] == 400

    @pytest.mark.importer(33, 50)
    async def test_unclosed_quote_in_a_long_file_is_processed_quickly(self, ana: Caller):
        reference = await uploaded(ana, b'a,b\n1,"x\n' + b"2,y\n" * (3 * MIB // 4))
        with Timed(6):
            body = (await preview(ana, reference)).json()
        assert body["preview_data"][:2] == [["1", '"x'], ["2", "y"]]
        assert len(body["preview_data"]) == 50

    async def test_field_and_record_lengths_are_limited(self, ana: Caller):
        reference = await uploaded(ana, b"a,b\n1," + b"x" * (MIB + 1) + b"\n")
        for _ in range(2):
            assert refusal(await preview(ana, reference)) == (400, "record_too_long")
        reference = await uploaded(ana, b"a,b\n1," + b"x" * MIB + b"\n")
        assert len((await preview(ana, reference)).json()["preview_data"][0][1]) == MIB

    @pytest.mark.parametrize("width", [1000, MIB // 2])
    async def test_field_crossing_the_sample_end_is_measured_in_full(self, ana: Caller, width: int):
        """The field follows seven and a half MiB of records. Half of it is therefore beyond the end of the sample."""
        line = b"1," + b"y" * width + b"\n"
        before = b"a,b\n" + line * (15 * MIB // 2 // len(line))
        too_long = await uploaded(ana, before + b"1," + b"x" * (MIB + 1) + b"\n")
        assert refusal(await preview(ana, too_long)) == (400, "record_too_long")
        longest = await uploaded(ana, before + b"1," + b"x" * MIB + b"\n2,z\n")
        assert (await preview(ana, longest)).status_code == 200


class TestWorkbooks:
    @pytest.mark.importer(49, 61)
    @pytest.mark.parametrize("kind", ["ratio", "size", "entries", "columns", "entities"])
    async def test_workbook_bombs_are_refused(self, ana: Caller, tmp_path: Path, kind: str):
        path = bomb(tmp_path / "bomb.xlsx", kind)
        reference = await uploaded(ana, path.read_bytes())
        for ask in (guess, preview):
            with Timed(5):
                more = {} if ask is guess else {"file_type": "excel", "sheet_name": "one"}
                answer = await ask(ana, reference, **more)
            if ask is preview or kind in {"ratio", "size", "entries"}:
                assert refusal(answer) in {(400, "file_too_complex"), (400, "file_corrupt")}
                assert refusal(answer)[1] == "file_too_complex" or kind == "entities"


def bomb(path: Path, kind: str) -> Path:
    """Write a workbook that exceeds one of the limits in Contract importer 14.4; return its path."""
    parts: dict[str, str | bytes] = {**workbook_parts({"one": column_xml(["<c><v>1</v></c>"])})}
    if kind == "ratio":
        parts["xl/media/a"] = bytes(8 * MIB)
    if kind == "columns":
        cells = "".join("<c><v>1</v></c>" for _ in range(2001))
        parts |= workbook_parts({"one": sheet_xml(f"<row>{cells}</row>")})
    if kind == "entities":
        levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
        declared = f'<!DOCTYPE x [<!ENTITY e0 "ha">{levels}]>'
        text = '<row><c t="inlineStr"><is><t>&e9;</t></is></c></row>'
        parts["xl/worksheets/sheet1.xml"] = f'<?xml version="1.0"?>{declared}{sheet_xml(text)}'
    write_package(path, parts)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as package:
        for number in range(20_000 if kind == "entries" else 0):
            package.writestr(f"a{number}", "")
    return _with_false_size(path) if kind == "size" else path


def _with_false_size(path: Path) -> Path:
    """Change the ZIP directory, so that it states a size of 600 MiB for the worksheet."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"xl/worksheets/sheet1.xml"))
    content[entry + 24 : entry + 28] = (600 * MIB).to_bytes(4, "little")
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[World]:
    """An application whose HDFS store can contain misbehaving files."""
    directory = tmp_path_factory.mktemp("odd-files")
    memory = {**memory_stores(), Scheme.HDFS: OddFileSystem()}
    settings = storage_settings(directory, shared_database_dsn)
    async with open_world(settings, directory / "files", memory) as opened:
        yield opened


class TestMemory:
    @pytest.mark.importer(41)
    @pytest.mark.parametrize("pattern", [b"1,2,3\n", b'1,"a\nb",3\n', b",\n", b"1," + b"x" * 900 + b"\n"])
    @pytest.mark.slow
    async def test_ninety_mebibyte_file_takes_little_memory(self, world: World, pattern: bytes):
        store = world.memory[Scheme.HDFS]
        assert isinstance(store, OddFileSystem)
        store.odd["large.csv"] = Oddity(90 * MIB, pattern=pattern)
        eva = await world.api.user("eva")
        tracemalloc.start()
        try:
            for has_header in ("true", "false"):
                query = {"import_type": "remote", "has_header": has_header}
                assert (await preview(eva, "/large.csv", **query)).status_code == 200
            assert tracemalloc.get_traced_memory()[1] < 64 * MIB
        finally:
            tracemalloc.stop()
