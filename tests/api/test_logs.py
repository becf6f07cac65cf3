"""The audit log and the access log (Contract platform 11, `desktop.logging`)."""

import json
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, accounts
from tests.fixtures.logs import audit_event_handler

from queryserver.identity.model import AuthenticatedUser
from queryserver.platform.logs import ACCESS_LOGGER, FIELDS, LineFormatter, Redactor

Event = dict[str, object]


@pytest.fixture
def audited() -> Iterator[list[Event]]:
    """The audit events of a test, parsed from formatted log lines."""
    events: list[Event] = []
    formatter = LineFormatter("json", Redactor())

    def hear(record: logging.LogRecord) -> None:
        line = formatter.format(record)
        assert line.isprintable()
        event = json.loads(line)
        shown = {name: event[name] for name in ("event", *getattr(record, FIELDS))}
        events.append({name: value for name, value in shown.items() if value})

    with audit_event_handler(hear):
        yield events


def about(events: list[Event], operation: str) -> list[Event]:
    return [event for event in events if event["event"] == operation]


async def test_accepted_and_refused_logins_are_audited(api: Api, audited: list[Event]):
    name = (await api.user("ana")).username + "login"
    await accounts(api).create(AuthenticatedUser(name), PASSWORD)
    assert (await api.stranger.post("token/auth", username=name, password="Wrong-0-word")).status_code == 401
    assert (await api.stranger.post("token/auth", username=name, password=PASSWORD)).status_code == 200
    refused, accepted = about(audited, "login")
    common = {"event": "login", "user": name, "effective_user": name, "client": "127.0.0.1"}
    assert refused == {**common, "outcome": "authentication_failed"}
    assert accepted == {**common, "outcome": "ok", "back_end": "local"}
    assert PASSWORD not in json.dumps(audited)
    assert "Wrong-0-word" not in json.dumps(audited)


async def test_accepted_login_is_audited_under_the_account_name(api: Api, audited: list[Event]):
    name = (await api.user("ana")).username + "login"
    await accounts(api).create(AuthenticatedUser(name), PASSWORD)
    for typed in (f" {name.upper()} ", "".join(chr(ord(letter) + 0xFEE0) for letter in name)):
        assert (await api.stranger.post("token/auth", username=typed, password=PASSWORD)).status_code == 200
    assert [event["user"] for event in about(audited, "login")] == [name] * 2


@pytest.mark.security("T29")
async def test_user_names_cannot_inject_log_lines(api: Api, audited: list[Event]):
    names = ["eve\r\nforged line", "eve\x1b[2J", "e" * 150]
    for name in names:
        await api.stranger.post("token/auth", username=name, password="x")
    assert [event["user"] for event in about(audited, "login")] == names


async def test_token_revocations_are_audited(api: Api, audited: list[Event]):
    ana = await api.user("ana")
    token = ana.headers["Authorization"].removeprefix("Bearer ")
    await api.stranger.post("token/revoke", token=token)
    [event] = about(audited, "token.revoke")
    assert (event["user"], event["outcome"]) == (ana.username, "ok")
    assert token.rpartition(".")[2] not in json.dumps(audited)


async def test_statements_are_audited_by_id_without_their_text(api: Api, audited: list[Event]):
    ana = await api.user("ana")
    body = await ana.run(POSTGRESQL, "SELECT 'planted-text'")
    [event] = about(audited, "statement.start")
    assert event == {
        "event": "statement.start",
        "user": ana.username,
        "effective_user": ana.username,
        "outcome": "ok",
        "subject": "postgresql",
        "operation_id": body["history_uuid"],
    }
    assert UUID(str(event["operation_id"]))
    assert "planted-text" not in json.dumps(audited)


async def test_repeated_call_is_audited_once(api: Api, audited: list[Event]):
    ana = await api.user("ana")
    for _ in range(2):
        fields, headers = {"statement": "SELECT 1", "wait": "30"}, {"Idempotency-Key": "once"}
        assert (await ana.send("POST", "editor/execute/postgresql", data=fields, headers=headers)).status_code == 200
    assert len(about(audited, "statement.start")) == 1


async def test_result_downloads_and_refusals_are_audited(api: Api, audited: list[Event]):
    ana, bob = await api.user("ana"), await api.user("bob")
    operation = (await ana.run(POSTGRESQL, "SELECT 1"))["history_uuid"]
    await ana.get(f"editor/download/{operation}")
    await bob.get(f"editor/download/{operation}")
    events = [(one["user"], one["outcome"], one["operation_id"]) for one in about(audited, "result.download")]
    assert events == [(ana.username, "ok", operation), (bob.username, "operation_not_found", operation)]


async def test_range_downloads_and_their_failures_are_audited(api: Api, audited: list[Event]):
    ana = await api.user("ana")
    operation = (await ana.run("mysql", "rows 30000 wide 500", limit=30_000))["history_uuid"]
    path, headers = f"editor/download/{operation}", {"Range": "bytes=5-9"}
    assert (await ana.get(path, headers=headers)).status_code == 206
    assert [one["outcome"] for one in about(audited, "result.download")] == ["ok"]
    broken = (await ana.run("mysql", "rows 30000 wide 500", limit=30_000))["history_uuid"]
    for file in api.services.settings.results_dir.rglob(f"*{broken}*/*"):
        file.unlink()
    assert (await ana.get(f"editor/download/{broken}", headers=headers)).status_code == 503
    assert [one["outcome"] for one in about(audited, "result.download")] == ["ok", "service_unavailable"]


@pytest.fixture
def lines() -> Iterator[list[dict[str, object]]]:
    """The fields of the access log lines that a test causes."""
    found: list[dict[str, object]] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(dict(getattr(record, FIELDS)))  # type: ignore[method-assign]
    logger = logging.getLogger(ACCESS_LOGGER)
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.parametrize("is_on", [True, False])
async def test_access_log_has_one_line_per_call_with_the_caller_but_without_the_query(small_api, lines, is_on):
    lines.clear()
    async with small_api(desktop={"logging": {"access_log": is_on}}) as api:
        ana = await api.user("ana")
        operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
        download = await ana.get(f"editor/download/{operation}", format="csv", secret="planted")
        await api.stranger.get("editor/get_history", token="planted")
        await api.http.get("/nowhere")
    if not is_on:
        assert lines == []
        return
    found = [(one["user"], one["method"], one["path"], one["status"]) for one in lines]
    assert found == [
        (ana.username, "POST", "/api/v1/editor/execute/mysql", 200),
        (ana.username, "GET", f"/api/v1/editor/download/{operation}", 200),
        ("-", "GET", "/api/v1/editor/get_history", 401),
        ("-", "GET", "/nowhere", 404),
    ]
    assert lines[1]["bytes"] == download.num_bytes_downloaded, "as it was sent, compressed"
    assert {one["client"] for one in lines} == {"127.0.0.1"}
    assert all("complete" not in one for one in lines)
    assert "planted" not in str(lines)
