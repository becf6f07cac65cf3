"""What all calls of the importer share (Contract importer 2; checklist 1, 2, 60)."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scripts.check_operations import SERVED, Operation, read_operations
from tests.api.driving import Api, Caller, open_api
from tests.api.importer.conftest import CONTENT, ImporterOpener, importer_settings, refusal, upload
from tests.cases import each

from queryserver.imports.model import PREVIEW_DIALECTS

DIALECTS = f"Valid values: {', '.join(PREVIEW_DIALECTS)}."
CALLS = [one for one in read_operations() if one.group == "importer" and one.status == SERVED]


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


every_call = each("every", CALLS, ids=name_of)


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
    @each(
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
