"""Whose operation it is (Contract editor 1.6)."""

import json
from uuid import uuid4

import httpx
import pytest
from tests.api.driving import Api, Caller, verdict
from tests.cases import each

POSTS = (
    "check_status",
    "fetch_result_data",
    "fetch_result_metadata",
    "fetch_result_size",
    "get_logs",
    "cancel_statement",
    "close_statement",
)


def without(answer: httpx.Response, *ids: str) -> str:
    """The body, blind to the ids that the caller sent."""
    text = answer.text
    for one in ids:
        text = text.replace(json.dumps(one)[1:-1], "ID")
    return text


class TestStrangers:
    @pytest.mark.item(42)
    @each("call", POSTS)
    async def test_an_id_of_somebody_else_looks_like_an_unknown_one(self, ana: Caller, bob: Caller, call: str):
        theirs, unknown = (await ana.run("mysql", "rows 1"))["history_uuid"], str(uuid4())
        answers = {one: await bob.post(f"editor/{call}", operationId=one) for one in (theirs, unknown, "malformed")}
        assert {verdict(answer) for answer in answers.values()} == {(404, 2, "operation_not_found")}
        assert len({without(answer, one) for one, answer in answers.items()}) == 1
        assert await ana.state(theirs) == "available"

    @pytest.mark.item(42)
    @each("call", POSTS)
    async def test_guid_and_secret_open_nothing(self, ana: Caller, bob: Caller, call: str):
        body = await ana.run("mysql", "rows 1")
        guid = body["handle"]["guid"]
        for handle in ({"guid": guid, "secret": body["handle"]["secret"]}, body["handle"]):
            theirs = await bob.post_json(f"editor/{call}", snippet={"result": {"handle": handle}})
            assert verdict(theirs) == (404, 2, "operation_not_found")
            assert body["history_uuid"] not in theirs.text
        unknown_guid = "AAAAAAAAAAAAAAAAAAAAAA=="
        unknown = await bob.post_json(f"editor/{call}", snippet={"result": {"handle": {"guid": unknown_guid}}})
        assert without(unknown, unknown_guid) == without(theirs, guid)
        assert await ana.state(body["history_uuid"]) == "available"

    @pytest.mark.item(42)
    @each("path", ["GET editor/download/", "GET editor/events/", "POST editor/watch/"])
    async def test_paths_with_an_id_are_closed_too(self, ana: Caller, bob: Caller, path: str):
        method, _, start = path.partition(" ")
        theirs, unknown = (await ana.run("mysql", "rows 1"))["history_uuid"], str(uuid4())
        answers = {one: await bob.send(method, start + one) for one in (theirs, unknown, "malformed")}
        assert {verdict(answer) for answer in answers.values()} == {(404, 2, "operation_not_found")}
        assert len({without(answer, one) for one, answer in answers.items()}) == 1

    @pytest.mark.item(42)
    async def test_nobody_continues_the_script_of_somebody_else(self, ana: Caller, bob: Caller):
        first = await ana.run("mysql", "set x 1; get x")
        refused = await bob.refused("editor/execute/mysql", operationId=first["history_uuid"])
        assert refused == (404, 2, "operation_not_found")
        # An unknown guid links no session, so bob's statement runs in one of his own.
        snippet = {"type": "mysql", "statement": "set x 1; get x", "result": {"handle": first["handle"]}}
        body = (await bob.post_json("editor/execute", snippet=snippet, wait=30)).json()
        assert (body["handle"]["statement_id"], body["code"]) == (1, "engine_error")
        assert body["handle"]["session_id"] != first["handle"]["session_id"]


class TestAdministrators:
    @pytest.mark.item(43)
    async def test_they_may_follow_and_stop_but_not_read(self, api: Api, ana: Caller):
        admin = await api.user(admin=True)
        operation = (await ana.execute("mysql", "sleep 30 then rows 1"))["history_uuid"]
        await ana.running(operation)
        assert (await admin.on(operation, "check_status"))["query_status"]["state"] == "running"
        assert (await admin.on(operation, "get_logs"))["status"] == 0
        assert (await admin.told(f"editor/watch/{operation}"))["statement"] == "sleep 30 then rows 1"
        async with api.http.stream("GET", f"/api/v1/editor/events/{operation}", headers=admin.headers) as events:
            assert events.status_code == 200
        assert (await admin.on(operation, "cancel_statement"))["query_status"]["state"] == "canceled"

    @pytest.mark.item(43)
    async def test_results_are_for_the_owner_only(self, api: Api, ana: Caller):
        admin = await api.user(admin=True)
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        for call in ("fetch_result_data", "fetch_result_metadata", "fetch_result_size"):
            assert await admin.refused(f"editor/{call}", operationId=operation) == (404, 2, "operation_not_found")
        assert verdict(await admin.get(f"editor/download/{operation}")) == (404, 2, "operation_not_found")
        assert await admin.refused("editor/execute/mysql", operationId=operation) == (404, 2, "operation_not_found")
        assert (await admin.on(operation, "close_statement"))["result"]["status"] == 0
        assert await ana.state(operation) == "closed"

    @pytest.mark.item(43)
    async def test_their_fetch_of_a_failed_statement_is_404_too(self, api: Api, ana: Caller):
        admin = await api.user(admin=True)
        operation = (await ana.run("mysql", "fail nicely"))["history_uuid"]
        refused = await admin.refused("editor/fetch_result_data", operationId=operation)
        assert refused == (404, 2, "operation_not_found")
        assert (await admin.on(operation, "check_status"))["code"] == "engine_error"


class TestRights:
    @pytest.mark.item(72)
    async def test_a_lost_right_closes_the_operations_of_the_connector(self, api: Api):
        analyst = await api.user(groups=("analysts",))
        operation = (await analyst.run("closed", "rows 1"))["history_uuid"]
        await api.database.execute(
            "delete from group_members where user_id = (select id from users where username_key = $1) "
            "and group_id = (select id from groups where name = 'analysts')",
            analyst.username,
        )
        denied = (403, -1, "permission_denied")
        for call in POSTS[:-2]:
            assert await analyst.refused(f"editor/{call}", operationId=operation) == denied
        assert verdict(await analyst.get(f"editor/download/{operation}")) == denied
        assert verdict(await analyst.get(f"editor/events/{operation}")) == denied
        assert verdict(await analyst.post(f"editor/watch/{operation}")) == denied
        assert (await analyst.refused("editor/execute/closed", statement="rows 1"))[2] == "dialect_not_found"
        # It is still the analyst's own: cancel and close are allowed.
        for call in POSTS[-2:]:
            assert (await analyst.on(operation, call))["status"] == 0

    async def test_without_the_right_nothing_is_downloaded(self, api: Api, ana: Caller):
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        await api.database.execute(
            "delete from group_members where user_id = (select id from users where username_key = $1)", ana.username
        )
        assert verdict(await ana.get(f"editor/download/{operation}")) == (403, -1, "download_disabled")
        assert (await ana.page(operation))["data"] == [[0]]
