"""Exports of results into files (Contract exports 2 to 7)."""

import asyncio
import gzip
import io
import json
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.driving import Caller, until, verdict
from tests.api.storage.conftest import Files
from tests.api.test_api_token_statements import program_of
from tests.api.test_download import FORMATS, PLAIN, finished, rows_of

from queryserver.files.stores.local.transfers import LocalUpload
from queryserver.files.stores.local.tree import LocalTree
from queryserver.identity.repository import AccountRepository

MIB = 1024 * 1024
ROWS = "SELECT i AS n, CASE WHEN i % 2 = 0 THEN NULL ELSE 'é;,' || i END AS t, i / 4.0::DOUBLE AS d FROM range({}) r(i)"


async def exported(caller: Caller, operation: str, path: str, **fields: Any) -> dict[str, Any]:
    """Export a result, which must succeed; return the row of its result."""
    answer = await caller.post("editor/export_result", operationId=operation, path=path, **fields)
    assert answer.status_code == 202, answer.text
    assert answer.json()["path"] == path
    return await summary(caller, answer.json()["history_uuid"])


async def summary(caller: Caller, operation: str) -> dict[str, Any]:
    ended = await caller.ended(operation)
    assert ended["query_status"]["state"] == "available", ended
    page = await caller.page(operation)
    (row,) = page["data"]
    return dict(zip([column["name"] for column in page["meta"]], row, strict=True))


async def failure(caller: Caller, operation: str, path: str, **fields: Any) -> tuple[str, str]:
    """Export a result, which must fail; return the code and message of the outcome."""
    answer = await caller.post("editor/export_result", operationId=operation, path=path, **fields)
    assert answer.status_code == 202, answer.text
    body = await caller.ended(answer.json()["history_uuid"])
    return body["code"], body["message"]


async def refused(caller: Caller, **fields: Any) -> tuple[int, int, str]:
    """Call export_result, which must fail; return the HTTP status, `status` and `code` of the answer."""
    return verdict(await caller.post("editor/export_result", **fields))


async def written(caller: Caller, statement: str, into: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Run a statement whose rows go into files; return the row of its result."""
    body = await caller.run(fields.pop("dialect", "duckdb"), statement, into=json.dumps(into), **fields)
    assert body["status"] == 0, body
    return await summary(caller, body["history_uuid"])


def names(folder: Path) -> list[str]:
    """Return the names of all entries, including hidden ones."""
    return sorted(entry.name for entry in folder.iterdir())


def unpacked(name: str, content: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.decompress(content)
    if name.endswith(".zst"):
        return pa.CompressedInputStream(io.BytesIO(content), "zstd").read()
    return content


class TestFormats:
    @pytest.mark.exports(1)
    @pytest.mark.parametrize("kind", FORMATS)
    async def test_exported_file_equals_the_download(self, ana: Caller, files: Files, folder: str, kind: str):
        operation = await finished(ana, "duckdb", ROWS.format(9_000))
        found = await exported(ana, operation, f"file:///{folder}/out.{kind}")
        content = (files.root / folder / f"out.{kind}").read_bytes()
        downloaded = (await ana.get(f"editor/download/{operation}", format=kind, headers=PLAIN)).content
        if kind == "xlsx":
            assert rows_of(kind, content) == rows_of(kind, downloaded)
        else:
            assert content == downloaded
        assert found == {
            "rows": 9_000,
            "bytes": len(content),
            "files": 1,
            "path": f"file:///{folder}/out.{kind}",
            "table": None,
            "schema": json.dumps(
                [{"name": "n", "type": "BIGINT_TYPE"}, {"name": "t", "type": "STRING_TYPE"},
                 {"name": "d", "type": "DOUBLE_TYPE"}]
            ),
        }  # fmt: skip
        assert names(files.root / folder) == [f"out.{kind}"]

    @pytest.mark.exports(2)
    @pytest.mark.parametrize("ending", ["gz", "zst"])
    @pytest.mark.parametrize("kind", ["csv", "tsv", "ndjson"])
    async def test_text_files_are_compressed_as_their_names_say(
        self, ana: Caller, files: Files, folder: str, kind: str, ending: str
    ):
        operation = await finished(ana, "duckdb", ROWS.format(5_000))
        name = f"Out.{kind.upper()}.{ending}"
        await exported(ana, operation, f"file:///{folder}/{name}")
        content = unpacked(name, (files.root / folder / name).read_bytes())
        assert content == (await ana.get(f"editor/download/{operation}", format=kind, headers=PLAIN)).content

    @pytest.mark.exports(1)
    @pytest.mark.parametrize("kind", FORMATS)
    @pytest.mark.parametrize("dialect", ["duckdb", "postgresql"])
    async def test_into_writes_the_same_rows(self, ana: Caller, files: Files, folder: str, kind: str, dialect: str):
        statement = "SELECT i AS n, 'x' || i AS t, i / 4.0 AS d FROM generate_series(1, 3000) AS r(i)"
        into = {"path": f"file:///{folder}/out.{kind}"}
        found = await written(ana, statement, into, dialect=dialect)
        operation = await finished(ana, dialect, statement)
        content = (files.root / folder / f"out.{kind}").read_bytes()
        downloaded = (await ana.get(f"editor/download/{operation}", format=kind, headers=PLAIN)).content
        assert rows_of(kind, content) == rows_of(kind, downloaded)
        assert (found["rows"], found["bytes"], found["files"]) == (3000, len(content), 1)

    @pytest.mark.exports(2)
    async def test_compression_of_typed_files_is_inside_the_file(self, ana: Caller, files: Files, folder: str):
        operation = await finished(ana, "duckdb", ROWS.format(5_000))
        codecs: dict[str, str] = {}
        for name, fields in {
            "plain.parquet": {},
            "z.parquet.zst": {},
            "g.parquet": {"compression": "gzip"},
            "n.parquet": {"compression": "none"},
        }.items():
            await exported(ana, operation, f"file:///{folder}/{name}", **fields)
            column: Any = pq.ParquetFile(files.root / folder / name).metadata.row_group(0).column(0)
            codecs[name] = column.compression
        assert codecs == {
            "plain.parquet": "SNAPPY", "z.parquet.zst": "ZSTD", "g.parquet": "GZIP", "n.parquet": "UNCOMPRESSED"
        }  # fmt: skip
        await exported(ana, operation, f"file:///{folder}/a.feather", compression="zstd")
        await exported(ana, operation, f"file:///{folder}/b.feather")
        sizes = [(files.root / folder / name).stat().st_size for name in ("a.feather", "b.feather")]
        assert sizes[0] < sizes[1]

    @pytest.mark.exports(2)
    @pytest.mark.parametrize(
        ("name", "fields", "code"),
        [
            ("out", {}, "missing_parameter"),
            ("out.gz", {}, "missing_parameter"),
            ("out.txt", {}, "missing_parameter"),
            ("out.xlsx.gz", {}, "invalid_parameter"),
            ("out.arrow", {"compression": "gzip"}, "invalid_parameter"),
            ("out.csv", {"compression": "brotli"}, "invalid_parameter"),
            ("out.csv", {"format": "pdf"}, "invalid_parameter"),
            ("out.csv", {"split_rows": "0"}, "invalid_parameter"),
            ("out.csv", {"split_bytes": "1000"}, "invalid_parameter"),
            ("out.csv", {"if_exists": "append"}, "invalid_parameter"),
        ],
    )
    async def test_unsuitable_options_are_refused(
        self, ana: Caller, folder: str, name: str, fields: dict[str, str], code: str
    ):
        operation = await finished(ana, "duckdb", "SELECT 1 AS n")
        path = f"file:///{folder}/{name}"
        assert await refused(ana, operationId=operation, path=path, **fields) == (400, -1, code)
        into = json.dumps({"path": path, **fields})
        assert await ana.refused("editor/execute/duckdb", statement="SELECT 1", into=into) == (400, -1, code)

    @pytest.mark.exports(2)
    async def test_header_can_be_left_out_and_text_guarded(self, ana: Caller, files: Files, folder: str):
        operation = await finished(ana, "duckdb", "SELECT '=1+1' AS a, 2 AS b")
        await exported(ana, operation, f"file:///{folder}/a.csv", header="false", guard="true")
        assert (files.root / folder / "a.csv").read_bytes() == b"'=1+1,2\r\n"


class TestParts:
    @pytest.mark.exports(3)
    @pytest.mark.parametrize("way", ["export_result", "into"])
    async def test_parts_have_the_requested_rows(self, ana: Caller, files: Files, folder: str, way: str):
        path, options = f"file:///{folder}/parts", {"format": "csv", "compression": "gzip", "split_rows": 4_000}
        if way == "into":
            found = await written(ana, ROWS.format(9_000), {"path": path, **options})
        else:
            operation = await finished(ana, "duckdb", ROWS.format(9_000))
            found = await exported(ana, operation, path, **options)
        parts = sorted((files.root / folder / "parts").iterdir())
        assert [part.name for part in parts] == [f"part-0000{number}.csv.gz" for number in range(3)]
        rows = [rows_of("csv", gzip.decompress(part.read_bytes())) for part in parts]
        assert list(map(len, rows)) == [4_000, 4_000, 1_000]
        assert [row[0] for part in rows for row in part] == [str(number) for number in range(9_000)]
        sizes = sum(part.stat().st_size for part in parts)
        assert (found["rows"], found["files"], found["bytes"], found["path"]) == (9_000, 3, sizes, path)
        assert names(files.root / folder) == ["parts"]

    @pytest.mark.exports(3)
    async def test_parts_end_after_the_requested_bytes(self, ana: Caller, files: Files, folder: str):
        statement = "SELECT i AS n, md5(i::VARCHAR) AS t FROM range(200000) r(i)"
        into = {"path": f"file:///{folder}/parts.ndjson", "split_bytes": 2 * MIB}
        found = await written(ana, statement, into)
        parts = sorted((files.root / folder / "parts.ndjson").iterdir())
        sizes = [part.stat().st_size for part in parts]
        assert all(2 * MIB <= size < 5 * MIB for size in sizes[:-1]), sizes
        numbers = [json.loads(line)["n"] for part in parts for line in part.read_text().splitlines()]
        assert numbers == list(range(200_000))
        assert found["files"] == len(parts) >= 3

    @pytest.mark.exports(3)
    @pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx"])
    async def test_without_rows_there_is_one_part(self, ana: Caller, files: Files, folder: str, kind: str):
        operation = await finished(ana, "duckdb", "SELECT 1 AS n WHERE false")
        path = f"file:///{folder}/none"
        found = await exported(ana, operation, path, format=kind, split_rows=10)
        assert (found["rows"], found["files"]) == (0, 1)
        content = (files.root / folder / "none" / f"part-00000.{kind}").read_bytes()
        assert rows_of(kind, content) == []

    @pytest.mark.exports(3)
    async def test_too_many_parts_end_the_export(
        self, ana: Caller, files: Files, folder: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("queryserver.exports.files.MAX_PARTS", 3)
        operation = await finished(ana, "duckdb", "SELECT * FROM range(4)")
        path = f"file:///{folder}/many"
        code, message = await failure(ana, operation, path, format="csv", split_rows=1)
        assert (code, "3 parts" in message) == ("too_many_parts", True)
        assert names(files.root / folder) == []


class TestExistingTargets:
    @pytest.mark.exports(4)
    async def test_existing_file_is_refused_or_replaced(self, ana: Caller, files: Files, folder: str):
        operation, path = await finished(ana, "duckdb", "SELECT 1 AS n"), f"file:///{folder}/a.csv"
        (files.root / folder / "a.csv").write_text("old")
        refusal = (409, -1, "already_exists")
        assert await refused(ana, operationId=operation, path=path) == refusal
        into = json.dumps({"path": path})
        assert await ana.refused("editor/execute/duckdb", statement="SELECT 1", into=into) == refusal
        assert (files.root / folder / "a.csv").read_text() == "old"
        await exported(ana, operation, path, if_exists="replace")
        assert (files.root / folder / "a.csv").read_bytes() == b"n\r\n1\r\n"

    @pytest.mark.exports(4)
    async def test_existing_folder_is_refused(self, ana: Caller, files: Files, folder: str):
        operation, path = await finished(ana, "duckdb", "SELECT * FROM range(5) r(n)"), f"file:///{folder}/parts"
        await exported(ana, operation, path, format="csv", split_rows=1)
        fields = {"operationId": operation, "path": path, "format": "csv"}
        assert await refused(ana, **fields, split_rows="2") == (409, -1, "already_exists")
        assert await refused(ana, **fields, if_exists="replace") == (409, -1, "already_exists")
        replaced = await refused(ana, **fields, split_rows="2", if_exists="replace")
        assert replaced == (400, -1, "invalid_parameter")
        assert len(names(files.root / folder / "parts")) == 5

    @pytest.mark.exports(4)
    @pytest.mark.parametrize("split", [{}, {"split_rows": "1"}])
    async def test_target_that_appears_during_the_export_is_kept(
        self, ana: Caller, files: Files, folder: str, split: dict[str, str]
    ):
        ana.api.fakes["mysql"].finish.clear()
        source = (await ana.execute("mysql", "work then rows 5"))["history_uuid"]
        path = f"file:///{folder}/a"
        answer = await ana.post("editor/export_result", operationId=source, path=path, format="csv", **split)
        (files.root / folder / "a").write_text("other")
        ana.api.fakes["mysql"].finish.set()
        body = await ana.ended(answer.json()["history_uuid"])
        assert (body["status"], body["code"]) == (1, "already_exists")
        assert names(files.root / folder) == ["a"]
        assert (files.root / folder / "a").read_text() == "other"


class TestSources:
    @pytest.mark.exports(5)
    async def test_running_source_is_waited_for(self, ana: Caller, files: Files, folder: str):
        engine = ana.api.fakes["mysql"]
        engine.finish.clear()
        source = (await ana.execute("mysql", "work then rows 2500"))["history_uuid"]
        await ana.running(source)
        path = f"file:///{folder}/a.csv"
        answer = await ana.post("editor/export_result", operationId=source, path=path)
        operation = answer.json()["history_uuid"]
        assert (await ana.state(operation), names(files.root / folder)) in [("waiting", []), ("running", [])]
        log = (await ana.post_ok("editor/get_logs", operationId=operation))["logs"]
        assert f"The export begins when operation {source} has ended." in log
        engine.finish.set()
        assert (await summary(ana, operation))["rows"] == 2500
        assert len(rows_of("csv", (files.root / folder / "a.csv").read_bytes())) == 2500
        assert engine.executions.count("work then rows 2500") == 1

    @pytest.mark.exports(5)
    @pytest.mark.parametrize(("end", "code"), [("cancel_statement", "result_not_available"), ("close_statement", None)])
    async def test_source_without_rows_fails_the_export(
        self, ana: Caller, files: Files, folder: str, end: str, code: str | None
    ):
        source = (await ana.execute("mysql", "sleep 600 then rows 5"))["history_uuid"]
        await ana.running(source)
        path = f"file:///{folder}/a.csv"
        answer = await ana.post("editor/export_result", operationId=source, path=path)
        await ana.on(source, end)
        body = await ana.ended(answer.json()["history_uuid"])
        assert body["code"] in ({code} if code else {"result_expired", "result_not_available"}), body
        assert names(files.root / folder) == []

    @pytest.mark.exports(5)
    @pytest.mark.parametrize(
        ("statement", "end", "refusal"),
        [
            ("fail oops", None, (409, 1, "engine_error")),
            ("ddl", None, (409, 1, "no_result_set")),
            ("rows 5", "close_statement", (410, -3, "closed")),
        ],
    )
    async def test_ended_source_without_rows_is_refused(
        self, ana: Caller, folder: str, statement: str, end: str | None, refusal: tuple[int, int, str]
    ):
        source = (await ana.run("mysql", statement))["history_uuid"]
        if end is not None:
            await ana.on(source, end)
        path = f"file:///{folder}/a.csv"
        assert await refused(ana, operationId=source, path=path) == refusal

    @pytest.mark.exports(5)
    async def test_one_statement_of_a_script_is_exported(self, ana: Caller, files: Files, folder: str):
        script = "SELECT 1 AS a; SELECT 2 AS b; SELECT 3 AS c"
        source = (await ana.run("duckdb", script, run_all="true"))["history_uuid"]
        await exported(ana, source, f"file:///{folder}/last.csv")
        await exported(ana, source, f"file:///{folder}/first.csv", statement_id=0)
        assert (files.root / folder / "last.csv").read_bytes() == b"c\r\n3\r\n"
        assert (files.root / folder / "first.csv").read_bytes() == b"a\r\n1\r\n"

    @pytest.mark.exports(6)
    async def test_truncated_result_needs_permission(self, ana: Caller, files: Files, folder: str):
        path = f"file:///{folder}/a.csv"
        cut = await finished(ana, "mysql", "rows 30000")
        assert await refused(ana, operationId=cut, path=path) == (409, 1, "truncated")
        assert (await exported(ana, cut, path, allow_truncated="true"))["rows"] == 20_000
        limited = await finished(ana, "mysql", "rows 30000", limit=10)
        assert (await exported(ana, limited, path, if_exists="replace"))["rows"] == 10

    @pytest.mark.exports(6)
    async def test_result_that_is_truncated_meanwhile_is_not_exported(self, ana: Caller, files: Files, folder: str):
        engine = ana.api.fakes["mysql"]
        engine.finish.clear()
        source = (await ana.execute("mysql", "work then rows 30001"))["history_uuid"]
        answer = await ana.post("editor/export_result", operationId=source, path=f"file:///{folder}/a.csv")
        engine.finish.set()
        body = await ana.ended(answer.json()["history_uuid"])
        assert (body["code"], names(files.root / folder)) == ("truncated", [])


class TestInto:
    @pytest.mark.exports(7)
    async def test_limits_of_stored_results_do_not_apply(self, ana: Caller, files: Files, folder: str):
        path = f"file:///{folder}/a.csv"
        for limit, expected in ((None, 50_000), (30_000, 30_000), (7, 7), (10**12, 50_000)):
            into = {"path": path, "if_exists": "replace"}
            found = await written(
                ana, "rows 50000", into, dialect="mysql", **({} if limit is None else {"limit": limit})
            )
            assert found["rows"] == expected
            assert len(rows_of("csv", (files.root / folder / "a.csv").read_bytes())) == expected

    @pytest.mark.exports(7)
    async def test_size_limit_of_uploads_does_not_apply(
        self, ana: Caller, files: Files, folder: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(files.api.running.storage.upload_rules, "max_bytes", 1000)
        found = await written(ana, "rows 5000", {"path": f"file:///{folder}/a.csv"}, dialect="mysql")
        assert found["bytes"] > 1000

    @pytest.mark.exports(7)
    async def test_statement_without_rows_writes_no_file(self, ana: Caller, files: Files, folder: str):
        body = await ana.run("mysql", "ddl", into=json.dumps({"path": f"file:///{folder}/a.csv"}))
        assert (body["status"], body["code"], names(files.root / folder)) == (1, "rejected", [])

    @pytest.mark.exports(7)
    @pytest.mark.parametrize("fields", [{"rows": "5"}, {"run_all": "true"}, {"parameter_rows": "[[1]]"}])
    async def test_fields_that_contradict_are_refused(self, ana: Caller, folder: str, fields: dict[str, str]):
        into = json.dumps({"path": f"file:///{folder}/a.csv"})
        found = await ana.refused("editor/execute/duckdb", statement="SELECT 1", into=into, **fields)
        assert found == (400, -1, "conflicting_parameters")

    @pytest.mark.exports(7)
    async def test_parameters_and_sessions_work_with_into(self, ana: Caller, files: Files, folder: str):
        into = json.dumps({"path": f"file:///{folder}/a.csv"})
        body = await ana.run("postgresql", "SELECT ?::int AS n", into=into, parameters="[7]")
        assert body["status"] == 0, body
        assert (files.root / folder / "a.csv").read_bytes() == b"n\r\n7\r\n"

    @pytest.mark.exports(9)
    async def test_failing_statement_keeps_the_former_file(self, ana: Caller, files: Files, folder: str):
        target = files.root / folder / "a.csv"
        target.write_text("old")
        into = json.dumps({"path": f"file:///{folder}/a.csv", "if_exists": "replace"})
        body = await ana.run("mysql", "rows 10 then fail oops", into=into)
        assert (body["status"], body["code"], names(files.root / folder)) == (1, "engine_error", ["a.csv"])
        assert target.read_text() == "old"
        parts = json.dumps({"path": f"file:///{folder}/parts.csv", "split_rows": 3})
        body = await ana.run("mysql", "rows 10 then fail oops", into=parts)
        assert (body["status"], body["code"], names(files.root / folder)) == (1, "engine_error", ["a.csv"])

    @pytest.mark.exports(9)
    @pytest.mark.parametrize("split", [{}, {"split_rows": 1000}])
    async def test_error_of_the_engine_is_reported_as_without_into(
        self, ana: Caller, folder: str, split: dict[str, int]
    ):
        statement = "SELECT n, 1 / (n - 19000) FROM generate_series(1, 19500) AS n"
        into = json.dumps({"path": f"file:///{folder}/a.csv", **split})
        for more in ({}, {"into": into}):
            body = await ana.run("postgresql", statement, **more)
            assert (body["code"], body["sqlstate"], body["message"]) == ("engine_error", "22012", "division by zero")


class TestCancel:
    @pytest.mark.exports(8)
    @pytest.mark.parametrize("split", [{}, {"split_rows": 1_000_000}])
    async def test_canceled_export_leaves_nothing(self, ana: Caller, files: Files, folder: str, split: dict[str, int]):
        into = json.dumps({"path": f"file:///{folder}/a.csv", **split})
        statement = "SELECT i, md5(i::VARCHAR) AS t FROM range(100000000000) r(i)"
        operation = (await ana.execute("duckdb", statement, into=into))["history_uuid"]

        async def has_begun() -> bool:
            return any(path.is_file() and path.stat().st_size > MIB for path in (files.root / folder).rglob("*"))

        await until(has_begun)
        await ana.on(operation, "cancel_statement")
        assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
        assert names(files.root / folder) == []

    @pytest.mark.exports(8)
    async def test_waiting_export_can_be_canceled(self, ana: Caller, files: Files, folder: str):
        source = (await ana.execute("mysql", "sleep 600 then rows 5"))["history_uuid"]
        path = f"file:///{folder}/a.csv"
        operation = (await ana.post("editor/export_result", operationId=source, path=path)).json()["history_uuid"]
        await ana.on(operation, "cancel_statement")
        assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
        assert await ana.state(source) in {"waiting", "running"}
        await ana.on(source, "cancel_statement")
        assert names(files.root / folder) == []


class TestPublishing:
    @pytest.mark.exports(14)
    @pytest.mark.parametrize("split", [{}, {"split_rows": 2}])
    async def test_lost_claim_publishes_nothing(
        self, ana: Caller, files: Files, folder: str, split: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ):
        """A process that was held for longer than its lease goes on after its statement was given to another one."""

        async def is_lost(_claim: object) -> bool:
            return False

        exports = files.api.running.exporting
        monkeypatch.setattr(type(exports.files), "may_publish", staticmethod(is_lost), raising=False)
        operation = await finished(ana, "duckdb", "SELECT * FROM range(5)")
        code, _ = await failure(ana, operation, f"file:///{folder}/a.csv", **split)
        assert (code, names(files.root / folder)) == ("outcome_unknown", [])

    @pytest.mark.exports(14)
    @pytest.mark.parametrize("split", [{}, {"split_rows": 2}])
    async def test_export_that_is_canceled_while_it_publishes_is_reported_as_it_ended(
        self, ana: Caller, files: Files, folder: str, split: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ):
        is_publishing, may_go_on = threading.Event(), threading.Event()
        name = "rename" if split else "commit"
        kind = LocalTree if split else LocalUpload
        original = getattr(kind, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            is_publishing.set()
            assert may_go_on.wait(60)
            return original(*arguments, **options)

        monkeypatch.setattr(kind, name, slow)
        source = await finished(ana, "duckdb", "SELECT * FROM range(5)")
        answer = await ana.post("editor/export_result", operationId=source, path=f"file:///{folder}/a.csv", **split)
        operation = answer.json()["history_uuid"]
        await until(is_publishing.is_set)
        canceling = asyncio.create_task(ana.on(operation, "cancel_statement"))
        requested = "select cancel_requested_at is not null from statements where id = $1::uuid"
        await until(lambda: files.api.database.value(requested, operation))
        may_go_on.set()
        await canceling
        ended = await ana.ended(operation)
        assert (ended["query_status"]["state"], names(files.root / folder)) == ("available", ["a.csv"])


class TestRights:
    @pytest.mark.exports(11)
    async def test_other_users_and_unknown_operations_give_the_same_answer(self, ana: Caller, bob: Caller, folder: str):
        operation, unknown = await finished(ana, "duckdb", "SELECT 1 AS n"), str(uuid4())
        path = f"file:///{folder}/a.csv"
        answers = [await bob.post("editor/export_result", operationId=one, path=path) for one in (operation, unknown)]
        assert verdict(answers[0]) == (404, 2, "operation_not_found")
        assert answers[0].text.replace(operation, unknown) == answers[1].text

    @pytest.mark.exports(11)
    async def test_granted_result_is_exported_without_its_statement(
        self, ana: Caller, bob: Caller, files: Files, folder: str
    ):
        operation, path = await finished(ana, "duckdb", "SELECT 7 AS n"), f"file:///{folder}/a.csv"
        await ana.post_json("editor/share_result", operationId=operation, users=[bob.username])
        assert (await exported(bob, operation, path))["rows"] == 1
        assert (files.root / folder / "a.csv").read_text() == "n\n7\n"
        entry = (await bob.history())["history"][0]
        assert entry["data"]["statement"] == f"-- Export to {path}\n-- Shared result {operation}"

    @pytest.mark.exports(11)
    async def test_export_of_a_granted_result_fails_if_the_grant_ends(
        self, ana: Caller, bob: Caller, files: Files, folder: str
    ):
        files.api.fakes["mysql"].finish.clear()
        source = (await ana.execute("mysql", "work then rows 5"))["history_uuid"]
        await ana.post_json("editor/share_result", operationId=source, users=[bob.username])
        answer = await bob.post("editor/export_result", operationId=source, path=f"file:///{folder}/a.csv")
        assert answer.status_code == 202, answer.text
        await ana.post("editor/revoke_share", operationId=source)
        files.api.fakes["mysql"].finish.set()
        assert (await bob.ended(answer.json()["history_uuid"]))["code"] == "operation_not_found"
        assert names(files.root / folder) == []

    @pytest.mark.exports(11)
    async def test_directories_of_other_users_are_refused(self, ana: Caller, bob: Caller, files: Files):
        (files.root / "user" / bob.username).mkdir(parents=True)
        operation, path = await finished(ana, "duckdb", "SELECT 1 AS n"), f"file:///user/{bob.username}/a.csv"
        assert await refused(ana, operationId=operation, path=path) == (
            403, -1, "permission_denied"
        )  # fmt: skip
        into = json.dumps({"path": path})
        assert (await ana.refused("editor/execute/duckdb", statement="SELECT 1", into=into))[0] == 403

    @pytest.mark.exports(11)
    async def test_token_needs_both_scopes(self, ana: Caller, files: Files, folder: str):
        operation = await finished(ana, "duckdb", "SELECT 1 AS n")
        path, into = f"file:///{folder}/a.csv", json.dumps({"path": f"file:///{folder}/b.csv"})
        for scopes, expected in ((["query"], 403), (["files:write"], 403), (["query", "files:write"], 202)):
            program, _ = await program_of(ana, scopes=scopes)
            answer = await program.post("editor/export_result", operationId=operation, path=path)
            assert answer.status_code == expected, answer.text
            started = await program.post("editor/execute/duckdb", statement="SELECT 1 AS n", into=into, wait=60)
            assert started.status_code == (expected if expected == 403 else 200), started.text
            if expected == 403:
                assert {answer.json()["code"], started.json()["code"]} == {"insufficient_scope"}
        await summary(ana, answer.json()["history_uuid"])
        assert names(files.root / folder) == ["a.csv", "b.csv"]

    @pytest.mark.exports(11)
    async def test_rights_are_checked_at_the_call_and_when_writing(self, files: Files, folder: str):
        records = AccountRepository(files.api.database)
        await records.ensure_group("exporters", ["download", "filebrowser.file_access"])
        await records.ensure_group("lookers", ["filebrowser.file_access"])
        cora = await files.api.user("cora", groups=("exporters",))
        default = "delete from group_members m using users u, groups g where u.id = m.user_id and g.id = m.group_id"
        await files.api.database.execute(f"{default} and u.username = $1 and g.name <> 'exporters'", cora.username)
        files.api.fakes["mysql"].finish.clear()
        source = (await cora.execute("mysql", "work then rows 5"))["history_uuid"]
        path = f"file:///{folder}/a.csv"
        answer = await cora.post("editor/export_result", operationId=source, path=path)
        assert answer.status_code == 202, answer.text
        await files.api.database.execute(f"{default} and u.username = $1", cora.username)
        files.api.fakes["mysql"].finish.set()
        body = await cora.ended(answer.json()["history_uuid"])
        assert body["code"] in {"download_disabled", "permission_denied"}, body
        refusal = await refused(cora, operationId=source, path=path)
        assert refusal == (403, -1, "download_disabled")
        into = json.dumps({"path": path})
        refusal = await cora.refused("editor/execute/mysql", statement="rows 1", into=into)
        assert refusal == (403, -1, "download_disabled")
        assert names(files.root / folder) == []

    @pytest.mark.exports(11)
    async def test_read_only_connector_may_be_exported(self, ana: Caller, files: Files, folder: str):
        operation = await finished(ana, "frozen", "SELECT generate_series(1, 3)")
        assert (await exported(ana, operation, f"file:///{folder}/a.csv"))["rows"] == 3

    @pytest.mark.exports(12)
    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("file:///{}/none/a.csv", 404, "path_not_found"),
            ("file:///{}/../a.csv", 400, "invalid_path"),
            ("file:///{}/._qs_x.csv", 400, "invalid_path"),
            ("file:///{}/._qs_folder_0123456789abcdef0123456789abcdef/a.csv", 400, "invalid_path"),
            ("gopher://{}/a.csv", 400, "unknown_scheme"),
            ("s3a://bucket/{}/a.csv", 400, "storage_not_configured"),
            ("   ", 400, "missing_parameter"),
        ],
    )
    async def test_bad_paths_are_refused(self, ana: Caller, folder: str, path: str, status: int, code: str):
        operation = await finished(ana, "duckdb", "SELECT 1 AS n")
        fields = {"path": path.format(folder), "format": "csv"}
        for split in ({}, {"split_rows": "1"}):
            found = await refused(ana, operationId=operation, **fields, **split)
            assert found == (status, -1, code)
        found = await ana.refused("editor/execute/duckdb", statement="SELECT 1", into=json.dumps(fields))
        assert found == (status, -1, code)


class TestRecord:
    @pytest.mark.exports(13)
    async def test_export_is_a_statement_with_history_and_log(self, ana: Caller, folder: str):
        operation, path = await finished(ana, "duckdb", "SELECT 1 AS n"), f"file:///{folder}/a.csv"
        answer = await ana.post("editor/export_result", operationId=operation, path=path)
        await summary(ana, answer.json()["history_uuid"])
        entry = (await ana.history())["history"][0]
        assert entry["uuid"] == answer.json()["history_uuid"]
        assert entry["data"]["statement"] == f"-- Export to {path}\nSELECT 1 AS n"
        logs = (await ana.on(answer.json()["history_uuid"], "get_logs"))["logs"]
        assert f"Writing to {path}." in logs
        assert f"Wrote 1 rows to {path} (6 bytes)." in logs

    @pytest.mark.exports(13)
    async def test_idempotency_key_prevents_a_second_export(self, ana: Caller, files: Files, folder: str):
        operation, path = await finished(ana, "duckdb", "SELECT 1 AS n"), f"file:///{folder}/a.csv"
        fields = {"operationId": operation, "path": path, "client_request_id": "once"}
        first = await ana.post("editor/export_result", **fields)
        await summary(ana, first.json()["history_uuid"])
        second = await ana.post("editor/export_result", **fields)
        assert (second.json(), second.headers["Idempotency-Replayed"]) == (first.json(), "true")
        other = await refused(ana, **{**fields, "path": f"file:///{folder}/b.csv"})
        assert other == (409, -1, "idempotency_conflict")
        into = {"statement": "SELECT 1", "into": json.dumps({"path": f"file:///{folder}/c.csv"}), "wait": 60}
        bodies = [await ana.post_ok("editor/execute/duckdb", **into, client_request_id="two") for _ in range(2)]
        assert bodies[0]["history_uuid"] == bodies[1]["history_uuid"]


async def test_a_statement_above_a_limit_on_estimates_is_not_exported(files: Files, ana: Caller, folder: str):
    into = json.dumps({"path": f"file:///{folder}/rows.csv"})
    refused = await ana.run("measured", "rows 11", into=into)
    assert (refused["code"], refused["query_status"]["estimated_bytes"]) == ("estimate_exceeded", 11_000)
    assert not (files.root / folder / "rows.csv").exists()
    body = await ana.run("measured", "rows 10", into=into)
    assert (body["status"], body["query_status"]["estimated_bytes"]) == (0, 10_000)
