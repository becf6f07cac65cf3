"""Earlier results are used as tables. A statement refers to them by name, as in `{orders}` (Contract editor 6.5)."""

import asyncio
from uuid import uuid4

import pytest
from tests.client.conftest import QUICK, Server
from tests.client.shell import Qs

from queryserver_client import Connection, NoResultSet, Truncated, connect, connect_sync
from queryserver_client.named_results import with_results

ONE = "6f1c2b3a-0000-4000-8000-000000000001"


@pytest.mark.parametrize(("given", "sent"),
    [("FROM {a}", 'FROM "result://…"'),
    ("FROM {a} JOIN {a} AS b ON {a}.id = b.id",
     'FROM "result://…" JOIN "result://…" AS b ON "result://…".id = b.id'),
    ("SELECT {'k': 1} FROM {a} -- {a}\n/* {a} */", "SELECT {'k': 1} FROM \"result://…\" -- {a}\n/* {a} */"),
    ("SELECT '{a}', \"{a}\", $${a}$$, $x$ $$ {a} $x$ FROM {a}",
     "SELECT '{a}', \"{a}\", $${a}$$, $x$ $$ {a} $x$ FROM \"result://…\""),
    ("SELECT 'it''s {a}', E'\\'{a}' FROM {a} WHERE t LIKE'\\' OR {a}.x",
     "SELECT 'it''s {a}', E'\\'{a}' FROM \"result://…\" WHERE t LIKE'\\' OR \"result://…\".x"),
    ("FROM {b}, {a}, {A}, { a }, {a b}", 'FROM {b}, "result://…", {A}, { a }, {a b}')],
)  # fmt: skip
def test_only_names_outside_quotes_and_comments_are_results(given: str, sent: str):
    assert with_results(given, {"a": ONE}) == sent.replace("…", ONE)


def test_text_without_results_is_unchanged():
    assert with_results("FROM {a}", None) == with_results("FROM {a}", {}) == "FROM {a}"


@pytest.mark.parametrize(("sql", "results", "message"), [
    ("FROM t", {"a": ONE}, "has no {a}"), ("FROM {a}", {"a": "nonsense"}, "not an operation id"),
    ("SELECT '{a}' FROM {b}", {"a": ONE, "b": ONE}, "has no {a}")])  # fmt: skip
def test_unused_results_and_invalid_ids_are_refused_before_sending(sql: str, results: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        with_results(sql, results)


async def test_results_statements_and_ids_work_in_every_run_method(db: Connection):
    result, statement = await db.query("mysql", "rows 2"), await db.submit("mysql", "rows 3")
    names = {"a": result, "b": statement, "c": str(uuid4())}
    sent = 'text "result://{}" "result://{}" "result://{}"'.format(
        result.operation_id, statement.operation_id, names["c"]
    )
    template = "text {a} {b} {c}"
    assert await (await db.query("mysql", template, results=names)).scalar() == sent.removeprefix("text ")
    (one,) = await db.script("mysql", template, results=names)
    assert await one.scalar() == sent.removeprefix("text ")
    assert (await db.submit("mysql", template, results=names)).handle["statement"] == sent


async def test_sync_client_accepts_named_results(server: Server):
    token = await server.token()

    def work() -> tuple[str, list[str]]:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            result = db.query("mysql", "rows 2")
            names = {"a": result}
            given = [
                db.query("mysql", "text {a}", results=names),
                *db.script("mysql", "text {a}", results=names),
                db.submit("mysql", "text {a}", results=names).result(),
            ]
            return result.operation_id, [one.scalar() for one in given]

    operation, given = await asyncio.to_thread(work)
    assert given == [f'"result://{operation}"'] * 3


async def test_partial_result_is_never_used_as_whole(small_server: Server):
    async with connect(small_server.url, token=await small_server.token(), retries=QUICK) as db:
        cut = await db.query("mysql", "rows 5001")
        with pytest.raises(Truncated):
            await db.query("mysql", "text {a}", results={"a": cut})
        cut.allow_truncated = True
        await db.query("mysql", "text {a}", results={"a": cut})
        with pytest.raises(NoResultSet):
            await db.query("mysql", "text {a}", results={"a": await db.query("mysql", "change 3")})


async def test_command_line_keeps_result_and_names_it_in_another_statement(qs: Qs):
    kept = await qs("sql", "mysql", "rows 3", "--keep")
    assert (kept.code, kept.text) == (0, "n\n0\n1\n2\n")
    operation = kept.err.strip().removeprefix("kept: ")
    for named in (operation, operation[:8]):
        shown = await qs("sql", "mysql", "text {orders}", "-r", f"orders={named}", "-o", "json")
        assert (shown.code, shown.err) == (0, "")
        assert f"result://{operation}" in shown.text


@pytest.mark.parametrize(("words", "message"), [
    (("text {a}", "-r", "a"), "name=id"), (("text x", "-r", f"a={ONE}"), "has no {a}"),
    (("text {a}", "-r", "a=zzzz"), "0 recent statements"), (("text {a}", "-r", "a=ab"), "four characters"),
    (("text {a}", "-r", f"a={ONE}", "-r", f"a={ONE}"), "twice")])  # fmt: skip
async def test_command_line_reports_invalid_names(qs: Qs, words: tuple[str, ...], message: str):
    refused = await qs("sql", "mysql", *words)
    assert (refused.code, message in refused.err) == (2, True), refused.err
