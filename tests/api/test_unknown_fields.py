"""Fields that a call does not read are listed in a header and in the log (Contract editor 1.2)."""

import json

from structlog.testing import capture_logs
from tests.api.driving import Api, Caller
from tests.api.walk import Walk
from tests.cases import each

from queryserver.api.bodies import SENT_BY_HUE, SeenFields, UnknownFieldsLog, header_value

HEADER = "x-unknown-fields"
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


async def test_they_are_listed_whatever_the_body_and_the_outcome(ana: Caller):
    fields = {"statement": "rows 1", "Limt": "5", "database": "shop", "wiat": "3", "snippet": "{}", "cluster": "x"}
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    for body in (
        {"data": fields},
        {"json": fields},
        {"content": f"{parts}--b--\r\n".encode(), "headers": MULTIPART},
        # Of a POST the query string is not read at all.
        {"data": {**fields, "Limt": "5"}, "params": {"limit": "5", "Limt": "6"}},
    ):
        answer = await ana.send("POST", "editor/execute/mysql", **body)
        expected = "Limt,limit,wiat" if "params" in body else "Limt,wiat"
        assert (answer.status_code, answer.headers[HEADER]) == (200, expected)
    refused = await ana.post("editor/execute/mysql", statment="rows 1")
    assert (refused.status_code, refused.headers[HEADER]) == (400, "statment")
    answer = await ana.get("editor/get_history", limt=5, page=1, _="1700000000")
    assert (answer.status_code, answer.headers[HEADER]) == (200, "limt")


async def test_names_of_hue_and_known_ones_are_not_listed(ana: Caller):
    known = {"statement": "rows 1", "client_request_id": "k", "notebook": "{}", "session_id": None, "wait": 0}
    answer = await ana.post_json("editor/execute/mysql", **known, **dict.fromkeys(SENT_BY_HUE - {"session", *known}))
    assert (answer.status_code, HEADER in answer.headers) == (200, False)
    for path in ("editor/check_status", "editor/get_logs", "editor/fetch_result_data"):
        answer = await ana.post(path, operationId=answer.json().get("history_uuid", ""), snippet="{}", notebook="{}")
        assert HEADER not in answer.headers


async def test_calls_without_fields_and_other_groups_have_them_too(ana: Caller, api: Api):
    for method, path, more in (
        ("POST", "get_config", {"data": {"x": "1"}}),
        ("GET", "context/namespaces/hive", {"params": {"x": "1"}}),
        ("GET", "banners", {"params": {"x": "1"}}),
        ("GET", "connector/types", {"params": {"x": "1"}}),
        ("POST", "metadata/search/entities_interactive", {"data": {"query_s": "*", "x": "1", "sources": '["sql"]'}}),
        ("POST", "token/auth", {"data": {"username": "nobody", "password": "x", "x": "1"}}),
        ("POST", "token/revoke", {"data": {"token": "nonsense", "all": "false", "x": "1"}}),
        ("GET", "storage/list", {"params": {"path": "/nowhere", "doas": ana.username, "x": "1"}}),
        ("POST", "storage/mkdir", {"data": {"path": "/nowhere", "name": "n", "x": "1"}, "params": {"x": "2"}}),
        ("POST", "importer/create_table", {"data": {"table": "t", "x": "1"}}),
        ("GET", "importer/sql_type_mapping", {"params": {"sql_dialect": "hive", "x": "1"}}),
    ):
        answer = await (await api.user(admin=True)).send(method, path, **more)
        if path == "banners":
            assert HEADER not in answer.headers  # public, and nothing of the call is looked at
        else:
            assert answer.headers.get(HEADER) == "x", (path, answer.text)


async def test_uploads_list_fields_before_and_behind_their_file(ana: Caller):
    parts = {"odd": "1", "csrfmiddlewaretoken": "x"}
    before = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n1\r\n' for name in parts)
    file = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\na,b\r\n'
    behind = '--b\r\nContent-Disposition: form-data; name="later"\r\n\r\n1\r\n'
    answer = await ana.send(
        "POST",
        "importer/upload/file",
        content=f"{before}{file}{behind}--b--\r\n".encode(),
        headers=MULTIPART,
        params={"x": "2"},
    )
    assert (answer.status_code, answer.headers[HEADER]) == (201, "later,odd,x")


async def test_a_call_that_is_refused_before_its_fields_are_read_lists_none(ana: Caller, api: Api):
    for answer in (
        await ana.post("editor/execute/mysql", statement="rows 1", session_id="x"),
        await api.stranger.post("editor/execute/mysql", odd="1"),
        await ana.send(
            "POST", "editor/execute/mysql", content=b'{"odd": 1', headers={"Content-Type": "application/json"}
        ),
        await ana.post("nowhere", odd="1"),
    ):
        assert HEADER not in answer.headers


async def test_whole_walks_know_every_field_that_they_send(api: Api):
    answers = await Walk(api, await api.user(), as_json=True).whole()
    assert {key: answer.headers[HEADER] for key, answer in answers.items() if HEADER in answer.headers} == {}


async def test_the_log_has_the_names_and_no_values(ana: Caller):
    with capture_logs() as logs:
        for _ in range(3):
            await ana.post(
                "editor/execute/mysql", statement="rows 1", limt="hunter2", **{'{"odd": "hunter2"}': "", "é": "1"}
            )
        # A body that is no form reads as one name.
        await ana.send(
            "POST", "token/auth", content=b"hunter2", headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
    lines = [line for line in logs if line["event"] == "unknown request fields"]
    assert [(line["log_level"], line["fields"]) for line in lines] == [("info", "limt,?")]
    assert lines[0]["path"] == "/api/v1/editor/execute/{dialect:name}"
    assert "hunter2" not in json.dumps(lines)


@each(
    ("names", "value"),
    [
        ((), ""),
        (("a", "b-c.d"), "a,b-c.d"),
        (("x\r\nSet-Cookie: a", "a,b", "😀", "a b"), "x%0D%0ASet-Cookie:%20a,a%2Cb,%F0%9F%98%80,a%20b"),
        (("\ud800",), "%3F"),
    ],
)
def test_names_are_safe_in_a_header(names: tuple[str, ...], value: str):
    assert header_value(names) == value


def test_only_the_first_names_of_a_large_body_are_looked_at():
    seen = SeenFields()
    seen.came(map(str, range(1_000_000)))
    seen.read({"0"})
    assert len(seen.unknown(200)) == 1999


def test_a_header_has_its_bounds():
    assert header_value(f"n{number}" for number in range(100)).count(",") == 19
    long = header_value(["😀" * 200 + str(number) for number in range(20)])
    assert 0 < len(long) <= 1024
    assert header_value(["x" * 1000]) == "x" * 64


def test_the_log_has_its_bounds():
    log = UnknownFieldsLog()
    with capture_logs() as lines:
        for number in range(500):
            log.note("/path", (f"n{number}",))
    assert len(lines) == 100
