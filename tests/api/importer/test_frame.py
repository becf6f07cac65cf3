"""Rules of all calls of the importer, and hostile files (Contract importer 2, 14.4, 14.5)."""

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
    async def test_a_stranger_is_told_as_everywhere(self, api: Api, every: Operation):
        for path in (every.path, f"{every.path}/"):
            answer = await api.stranger.send(every.method, path)
            assert answer.status_code == 401
            assert answer.json() == {"detail": "Authentication credentials were not provided."}
        bad = Caller(api, "", {"Authorization": "Bearer bad"})
        answer = await bad.send(every.method, every.path)
        assert (answer.status_code, answer.json()["code"]) == (401, "token_not_valid")

    @pytest.mark.importer(1)
    @every_call
    async def test_each_call_is_there_with_and_without_the_last_slash(self, ana: Caller, every: Operation):
        for path in (every.path, f"{every.path}/"):
            assert refusal(await ana.send(every.method, path))[0] == 400

    @pytest.mark.importer(60)
    @every_call
    async def test_without_the_right_every_call_is_denied(self, api: Api, every: Operation):
        ana = await api.user("ana")
        leave = "delete from group_members where user_id = (select id from users where username = $1)"
        await api.database.execute(leave, ana.username)
        assert refusal(await ana.send(every.method, every.path)) == (403, "permission_denied")

    @pytest.mark.importer(60)
    async def test_administrators_need_no_right(self, api: Api):
        root = await api.user("root", admin=True)
        assert (await upload(root)).status_code == 201

    @pytest.mark.importer(60)
    async def test_an_importer_that_is_switched_off_denies_everybody(self, small_importer: ImporterOpener):
        async with small_importer(is_enabled=False) as api:
            for caller in (await api.user("ana"), await api.user("root", admin=True)):
                for call in CALLS:
                    assert refusal(await caller.send(call.method, call.path)) == (403, "permission_denied")
            assert (await api.stranger.send("POST", "importer/upload/file")).status_code == 401


class TestFailure:
    @pytest.mark.importer(2)
    @every_call
    async def test_a_wrong_method_is_told_in_the_body_of_the_importer(self, ana: Caller, every: Operation):
        answer = await ana.send("DELETE", every.path)
        assert refusal(answer) == (405, "method_not_allowed")
        assert every.method in answer.headers["allow"]

    async def test_an_unknown_path_is_told_as_everywhere(self, ana: Caller):
        answer = await ana.get("importer/nothing")
        assert (answer.status_code, answer.json()["status"], answer.json()["code"]) == (404, -1, "not_found")

    @pytest.mark.importer(2)
    async def test_a_fault_of_ours_tells_nothing_of_itself(self, tmp_path: Path, database_dsn: str):
        async with open_api(importer_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            await api.database.execute("drop table import_uploads")
            answer = await upload(ana)
            assert answer.status_code == 500
            assert answer.json() == {"error": "Internal error.", "code": "internal_error"}

    @pytest.mark.importer(2)
    async def test_an_upload_area_that_is_gone_is_500(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            shutil.rmtree(api.services.settings.uploads_dir)
            assert refusal(await upload(ana)) == (500, "storage_unavailable")


class TestFields:
    @pytest.mark.importer(2)
    async def test_of_a_repeated_parameter_the_last_counts(self, ana: Caller):
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
    async def test_a_wrong_parameter_is_named(self, ana: Caller, query: str, code: str, text: str | None):
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
    """Fails if what is done inside costs more time at work in this process: a busy machine has other things to do."""

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
    async def test_no_text_takes_long(self, ana: Caller, content: bytes):
        reference = await uploaded(ana, content)
        for ask in (guess, header, preview):
            with Timed(2):
                answer = await ask(ana, reference)
            assert answer.status_code == 200 or refusal(answer)[0] == 400

    @pytest.mark.importer(33, 50)
    async def test_a_quote_that_never_closes_in_a_long_file(self, ana: Caller):
        reference = await uploaded(ana, b'a,b\n1,"x\n' + b"2,y\n" * (3 * MIB // 4))
        with Timed(6):
            body = (await preview(ana, reference)).json()
        assert body["preview_data"][:2] == [["1", '"x'], ["2", "y"]]
        assert len(body["preview_data"]) == 50

    async def test_limits_of_fields_and_records(self, ana: Caller):
        reference = await uploaded(ana, b"a,b\n1," + b"x" * (MIB + 1) + b"\n")
        for _ in range(2):
            assert refusal(await preview(ana, reference)) == (400, "record_too_long")
        reference = await uploaded(ana, b"a,b\n1," + b"x" * MIB + b"\n")
        assert len((await preview(ana, reference)).json()["preview_data"][0][1]) == MIB

    @pytest.mark.parametrize("width", [1000, MIB // 2])
    async def test_a_field_that_the_sample_cuts_is_as_long_as_it_is(self, ana: Caller, width: int):
        """Seven MiB and a half of records, and a field that begins there: half of it lies behind the sample."""
        line = b"1," + b"y" * width + b"\n"
        before = b"a,b\n" + line * (15 * MIB // 2 // len(line))
        too_long = await uploaded(ana, before + b"1," + b"x" * (MIB + 1) + b"\n")
        assert refusal(await preview(ana, too_long)) == (400, "record_too_long")
        longest = await uploaded(ana, before + b"1," + b"x" * MIB + b"\n2,z\n")
        assert (await preview(ana, longest)).status_code == 200


class TestWorkbooks:
    @pytest.mark.importer(49, 61)
    @pytest.mark.parametrize("kind", ["ratio", "size", "entries", "columns", "entities"])
    async def test_bombs_are_too_complex(self, ana: Caller, tmp_path: Path, kind: str):
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
    """A workbook beyond one limit of Contract importer 14.4."""
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
    """The directory says that the worksheet has 600 MiB."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"xl/worksheets/sheet1.xml"))
    content[entry + 24 : entry + 28] = (600 * MIB).to_bytes(4, "little")
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[World]:
    """An application whose HDFS has odd files."""
    directory = tmp_path_factory.mktemp("odd-files")
    memory = {**memory_stores(), Scheme.HDFS: OddFileSystem()}
    settings = storage_settings(directory, shared_database_dsn)
    async with open_world(settings, directory / "files", memory) as opened:
        yield opened


class TestMemory:
    @pytest.mark.importer(41)
    @pytest.mark.parametrize("pattern", [b"1,2,3\n", b'1,"a\nb",3\n', b",\n", b"1," + b"x" * 900 + b"\n"])
    @pytest.mark.slow
    async def test_a_file_of_ninety_mebibytes_takes_little(self, world: World, pattern: bytes):
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
