"""`qs` as its users start it: as processes that call a real server (issue 20, section 4)."""

import asyncio
import json
import os
import signal
import stat
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.token.logins import PASSWORD, accounts
from tests.client.conftest import Server, api_token
from tests.client.shell import Make, Qs
from tests.timing import until

from queryserver.identity.model import AuthenticatedUser
from queryserver_client import __version__, connect
from queryserver_client.cli.forms import Form

FORMS = [form.value for form in Form]


async def test_login_is_stored_without_password_and_ends_with_logout(server: Server, make: Make, tmp_path: Path):
    caller = "shell"
    await accounts(server.api).create(AuthenticatedUser(caller), PASSWORD)
    qs = make()
    assert (await qs("sql", "duckdb", "SELECT 1")).code == 3
    refused = await qs("login", server.url, "--user", caller, "--stdin", stdin="wrong\n")
    assert refused.code == 3
    assert "rejected the credentials" in refused.err
    assert (await qs("login", server.url, "--user", caller, "--stdin", stdin=f"{PASSWORD}\n")).code == 0
    file = tmp_path / "config" / "login.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD not in file.read_text()
    assert (await qs("sql", "duckdb", "SELECT 1 AS one")).text == "one\n1\n"

    stored = json.loads(file.read_text())
    file.write_text(json.dumps(stored | {"access": "refused"}))
    assert (await qs("sql", "duckdb", "SELECT 2 AS two")).text == "two\n2\n"
    assert json.loads(file.read_text())["access"] not in ("refused", stored["access"])

    same = await make(QUERYSERVER_URL=f"{server.url}/api/v1/")("sql", "duckdb", "SELECT 3 AS three")
    assert same.text == "three\n3\n", same.err

    unreachable = await make(QUERYSERVER_URL="http://127.0.0.1:9")("ps")
    assert (unreachable.code, "not logged in to http://127.0.0.1:9" in unreachable.err) == (3, True)

    assert (await qs("logout")).code == 0
    assert not file.exists()
    file.write_text(json.dumps(stored))
    revoked = await qs("sql", "duckdb", "SELECT 1")
    assert (revoked.code, "run qs login" in revoked.err) == (3, True)


async def test_unreadable_stored_login_is_replaced_or_deleted(server: Server, make: Make, tmp_path: Path):
    await accounts(server.api).create(AuthenticatedUser("broken"), PASSWORD)
    qs, file = make(), tmp_path / "config" / "login.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    exited = await qs("ps")
    assert (exited.code, "log in again" in exited.err) == (2, True)
    assert (await qs("login", server.url, "--user", "broken", "--stdin", stdin=f"{PASSWORD}\n")).code == 0
    assert (await qs("ps")).code == 0
    file.write_text("{")
    assert (await qs("logout")).code == 0
    assert not file.exists()
    refused = await qs("login", "http://host:port", "--user", "broken", "--stdin", stdin=f"{PASSWORD}\n")
    assert (refused.code, "the address" in refused.err, "Traceback" in refused.err) == (2, True, False)


async def test_version_needs_no_login(make: Make):
    exited = await make()("--version")
    assert (exited.code, exited.text) == (0, f"qs {__version__}\n")


async def test_pipe_gets_plain_csv_and_other_formats_on_request(qs: Qs):
    sql = "SELECT i AS n, 'text ' || i AS t, NULL AS nothing FROM range(3) AS r(i)"
    assert (await qs("sql", "duckdb", sql)).text == "n,t,nothing\n0,text 0,\n1,text 1,\n2,text 2,\n"
    as_json = json.loads((await qs("sql", "duckdb", sql, "-o", "json")).out)
    assert as_json == [{"n": n, "t": f"text {n}", "nothing": None} for n in range(3)]
    assert json.loads((await qs("sql", "duckdb", f"{sql} LIMIT 0", "-o", "json")).out) == []
    table = pa.ipc.open_stream((await qs("sql", "duckdb", sql, "-o", "arrow")).out).read_all()
    assert table.column("t").to_pylist() == ["text 0", "text 1", "text 2"]
    target = qs.directory / "made.parquet"
    assert (await qs("sql", "duckdb", sql, "--to", str(target))).code == 0
    assert pq.read_table(target).num_rows == 3
    shown = (await qs("sql", "duckdb", sql, "-o", "table")).text.splitlines()
    assert shown[0].split() == ["n", "t", "nothing"]
    assert shown[2].split() == ["0", "text", "0", "NULL"]


async def test_script_comes_from_file_or_stdin(qs: Qs):
    script = qs.directory / "script.sql"
    script.write_text("CREATE TEMP TABLE kept AS SELECT 7 AS n;\nSELECT n FROM kept;\nSELECT n + 1 AS m FROM kept;\n")
    assert (await qs("sql", "duckdb", "-f", str(script))).text == "n\n7\nm\n8\n"
    assert (await qs("sql", "duckdb", stdin="SELECT 9 AS n")).text == "n\n9\n"
    several = await qs("sql", "duckdb", "-f", str(script), "-o", "parquet")
    assert (several.code, "more than one result" in several.err) == (2, True)


async def test_error_is_on_stderr_with_position(qs: Qs):
    ended = await qs(
        "sql", "postgresql", "SELECT 1 AS fine;\n\nSELECT fine,\n  nothing FROM generate_series(1, 2) AS fine"
    )
    assert ended.code == 1
    assert ended.text == "fine\n1\n"
    assert ended.err.splitlines()[-2:] == ["line 4:   nothing FROM generate_series(1, 2) AS fine", "          ^"]


async def test_connectors_and_plans_are_printed(qs: Qs):
    listed = await qs("connectors")
    assert listed.code == 0
    assert {"connector": "duckdb", "name": "duckdb", "dialect": "duckdb"} in listed.records
    assert (await qs("sql", "duckdb", "CREATE OR REPLACE TABLE explained (n INTEGER)")).code == 0
    plan = await qs("explain", "duckdb", "DROP TABLE explained; SELECT 1")
    assert (plan.code, plan.err) == (0, "")
    assert (await qs("sql", "duckdb", "SELECT count(*) AS n FROM explained")).text == "n\n0\n"
    facts = json.loads((await qs("explain", "postgresql", "--json", stdin="SELECT 1")).out)
    assert facts["statement"] == "SELECT 1"
    assert facts["estimated_cost"] > 0
    refused = await qs("explain", "postgresql", "SELECT nothing")
    assert (refused.code, refused.err.count("SELECT nothing")) == (1, 1), refused.err
    assert (await qs("explain", "duckdb", stdin=" ")).code == 2


async def test_truncated_result_is_reported_on_stderr(small_server: Server, make: Make):
    qs = make(QUERYSERVER_URL=small_server.url, QUERYSERVER_TOKEN=await small_server.token())
    sql = "SELECT i FROM range(6000) AS r(i)"
    ended = await qs("sql", "duckdb", sql)
    assert (ended.code, len(ended.records)) == (4, 5000), ended.err
    assert "the result is truncated" in ended.err
    wanted = await qs("sql", "duckdb", sql, "--limit", "4500")
    assert (wanted.code, len(wanted.records), wanted.err) == (0, 4500, "")


async def test_exit_code_identifies_failure(qs: Qs, make: Make):
    assert (await qs("sql", "duckdb", "SELECT 1", "-o", "nothing")).code == 2
    assert (await qs("sql", "nowhere", "SELECT 1")).code == 1
    assert (await qs("sql", "duckdb", "SELECT 1", "-p", "a=1", "-p", "2")).code == 2
    assert (await make(QUERYSERVER_URL="ftp://x", QUERYSERVER_TOKEN="t")("ps")).code == 2


async def test_values_are_bound_by_position_and_name(qs: Qs):
    text = "it's ?; :n"
    assert (await qs("sql", "duckdb", "SELECT ? + 1 AS n, ? AS t", "-p", "7", "-p", text)).records == [
        {"n": "8", "t": text}
    ]
    named = await qs(
        "sql", "postgresql", "SELECT :day + 1 AS day, :t AS t", "-p", "day:date=2024-02-28", "-p", f"t={text}"
    )
    assert named.records == [{"day": "2024-02-29", "t": text}], named.err


async def test_api_token_is_a_login_within_its_scopes(server: Server, make: Make):
    async with connect(server.url, token=await server.token()) as db:
        token = await api_token(db, "query")
    qs = make()
    login = await qs("login", server.url, "--token", "--stdin", stdin=f"{token}\n")
    assert login.code == 0, login.err
    assert (await qs("sql", "duckdb", "SELECT 1 AS one")).text == "one\n1\n"
    listed = await qs("ls", "file:///shared")
    assert (listed.code, "files:read" in listed.err) == (1, True)
    wrong = await make()("login", server.url, "--token", "--stdin", stdin=f"{token[:-4]}AAAA\n")
    assert wrong.code == 3
    # Logout removes the login from this machine. It does not revoke the token, which other programs may use.
    assert (await qs("logout")).code == 0
    async with connect(server.url, token=token) as db:
        assert await (await db.query("duckdb", "SELECT 2")).rows() == [(2,)]


async def test_ctrl_c_reaches_engine(server: Server, qs: Qs):
    text = "sleep 55"
    process = await qs.start("sql", "mysql", text)
    await until(lambda: server.engine.executions.count(text) == 1)
    cancels = server.engine.cancels
    os.kill(process.pid, signal.SIGINT)
    ended = await process.end()
    assert (ended.code, ended.err) == (130, "qs: interrupted\n")
    assert server.engine.cancels == cancels + 1
    assert [(entry["statement"], entry["state"]) for entry in (await qs("history")).records] == [(text, "canceled")]


async def test_termination_signal_reaches_engine(server: Server, qs: Qs):
    for number in (signal.SIGTERM, signal.SIGHUP):
        text = f"sleep 5{number}"
        process = await qs.start("sql", "mysql", text)
        await until(lambda text=text: server.engine.executions.count(text) == 1)
        cancels = server.engine.cancels
        os.kill(process.pid, number)
        os.kill(process.pid, number)  # timeout(1) also signals both the program and its process group
        ended = await process.end()
        assert (ended.code, ended.out, ended.err) == (128 + number, b"", "")
        assert server.engine.cancels == cancels + 1
    assert [entry["state"] for entry in (await qs("history")).records] == ["canceled"] * 2


@pytest.mark.parametrize(
    "words",
    [
        *(("sql", "duckdb", "SELECT i FROM range(30000) AS r(i) LIMIT 30000", "-o", form) for form in FORMS),
        ("sql", "duckdb", "SELECT 1", "-x"),
        ("ls", "-o", "table"),
        ("ls",),
        ("history", "-o", "csv"),
        ("history", "-o", "json"),
    ],
)
async def test_closed_pipe_ends_every_format_quietly(qs: Qs, words: tuple[str, ...]):
    from_out, out = os.pipe()
    from_err, err = os.pipe()
    os.close(from_out)
    _, code = await qs.start_at([os.open(os.devnull, os.O_RDONLY), out, err], *words)
    with os.fdopen(from_err) as errors:
        said = await asyncio.to_thread(errors.read)
    assert (int(await code), said) == (141, "")


async def test_unreachable_results_are_closed(qs: Qs):
    cut = f"SELECT i FROM range(30000) AS r(i) WHERE i >= 0 LIMIT {30_000}"
    from_out, out = os.pipe()
    os.close(from_out)
    _, code = await qs.start_at(
        [os.open(os.devnull, os.O_RDONLY), out, os.open(os.devnull, os.O_WRONLY)], "sql", "duckdb", cut
    )
    assert int(await code) == 141
    assert (await qs("sql", "duckdb", "SELECT 1; SELECT 2; SELECT nothing; SELECT 3")).code == 1
    states = [entry["state"] for entry in (await qs("history")).records]
    assert states == ["failed", "closed", "closed", "closed"]


async def test_running_statements_are_listed_and_killed(server: Server, qs: Qs):
    text = "sleep 56"
    process = await qs.start("sql", "mysql", text)
    await until(lambda: server.engine.executions.count(text) == 1)
    (running,) = (await qs("ps")).records
    assert (running["engine"], running["statement"]) == ("mysql", text)
    killed = await qs("kill", running["id"][:8])
    assert killed.text == f"{running['id']}  canceled\n"
    assert (await process.end()).code == 1
    assert (await qs("ps")).records == []
    again = await qs("kill", "ffffffff")
    assert (again.code, again.err) == (1, "qs: ffffffff: no such statement\n")


async def test_administrators_see_and_kill_statements_of_all_users(server: Server, qs: Qs, make: Make):
    text = "sleep 57"
    process = await qs.start("sql", "mysql", text)
    await until(lambda: server.engine.executions.count(text) == 1)
    admin = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=await server.token(admin=True))
    (running,) = [entry for entry in (await admin("ps", "--all")).records if entry["connector"] == "mysql"]
    assert (await qs("ps", "--all")).code == 1
    assert (await admin("kill", running["id"])).text == f"{running['id']}  canceled\n"
    assert (await process.end()).code == 1


async def test_qs_starts_as_a_module(server: Server, qs: Qs):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "queryserver_client.cli", "sql", "duckdb", "SELECT 1 AS one",
        env=dict(qs.environment), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"one\r\n1\r\n")


async def test_max_age_prints_the_stored_result(qs: Qs):
    query = ("sql", "duckdb", "SELECT random() AS n")
    first = await qs(*query, "--max-age", "3600")
    assert (await qs(*query, "--max-age", "3600")).text == first.text
    assert (await qs(*query)).text != first.text
    assert (await qs(*query, "--max-age", "0")).text != first.text


async def test_read_only_refuses_each_statement_of_a_script(qs: Qs):
    refused = await qs("sql", "duckdb", "SELECT 1 AS one; CREATE TABLE refused (n INT)", "--read-only")
    assert (refused.code, refused.text) == (1, "one\n1\n")
    assert "must only read, but the statement begins with CREATE" in refused.err


async def test_statements_above_max_estimated_bytes_are_not_run(qs: Qs):
    made = await qs("sql", "duckdb", "CREATE TABLE estimated_by_qs AS SELECT range AS n FROM range(500000)")
    assert made.code == 0
    count = ("sql", "duckdb", "SELECT sum(n) AS n FROM estimated_by_qs", "--max-estimated-bytes")
    refused = await qs(*count, "10")
    assert (refused.code, "above the limit of 10 bytes" in refused.err) == (1, True)
    assert (await qs(*count, str(2**40))).text == "n\n124999750000\n"


async def test_guards_apply_to_documents(qs: Qs):
    assert (await qs("documents", "save", "creates", "CREATE TABLE refused (n INT)", "-c", "duckdb")).code == 0
    refused = await qs("documents", "run", "creates", "--read-only")
    assert (refused.code, "must only read" in refused.err) == (1, True)


async def test_budget_lists_what_is_used_and_left(qs: Qs):
    seconds, read = (await qs("budget")).records
    assert (seconds["budget"], seconds["limit"], seconds["left"]) == ("engine_s", "", "")
    assert read["budget"] == "bytes"
    assert read["resets_at"].endswith("T00:00:00Z")
    other = await qs("budget", "-u", "someone")
    assert (other.code, other.text) == (1, "")
