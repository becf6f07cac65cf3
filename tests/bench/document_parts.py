"""Lists, searches and saves with 100,000 documents in the service database, over HTTP (Contract documents 10)."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any
from uuid import uuid4

import asyncpg
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.bench.setting import Measured

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.migrations import migrate

_ROUNDS = 20
_OTHERS = 500
_DOCUMENTS = """
insert into documents (uuid, owner_id, name, description, statement, parameters, connector, dialect, tags, folder,
    modified_by, size_bytes, created_at, modified_at)
select gen_random_uuid(), case when n % 2 = 0 then $1 else ($2::bigint[])[1 + n % array_length($2::bigint[], 1)] end,
    'report ' || n, 'Orders of the month ' || n % 12,
    'SELECT customer, sum(price) AS total FROM shop.orders WHERE month = :month AND region = ' || n % 97
        || repeat(' -- a comment that real statements have as well', 1 + n % 20),
    '[{"name": "month", "type": "bigint"}]', 'mysql', 'mysql', array['tag ' || n % 1000, 'monthly'],
    '/team ' || n % 100, 'bench', 900, now() - n * interval '1 minute', now() - n * interval '1 minute'
from generate_series(1, 100000) as n
"""
_GRANTS = """
insert into document_grants (document_id, group_id, permission, granted_by)
select id, (select id from groups where name = 'readers'), 'run', 'bench' from documents where id % 5 = 0
"""
_LISTS: Mapping[str, Mapping[str, Any]] = {
    "first page": {},
    "by folder": {"folder": "/team 42"},
    "by a tag that 100 documents have": {"tag": "tag 42"},
    "by a tag that all have": {"tag": "monthly"},
    "by a text that few documents have": {"text": "report 4242"},
    "by a text that all have": {"text": "customer"},
    "by a text that none has": {"text": "supplier"},
    "by type": {"type": "mysql"},
    "by owner": {"owner": "other7"},
}
_SEARCHES = {
    "a rare word": "4242",
    "a word that all have": "customer",
    "three words": "report orders 42",
    "everything": "",
}


async def documents(folder: Path) -> list[Measured]:
    """Measure calls of a user with 50,000 documents, and of one with whom 20,000 are shared by a group."""
    async with EmbeddedPostgres.start(folder / "state") as server:
        plain = await asyncpg.connect(server.admin_dsn())
        await plain.execute("create database bench")
        await plain.close()
        dsn = server.admin_dsn("bench")
        await migrate(dsn)
        settings = make_settings(folder, dsn, server.defaults.sample_dsn, documents={"max_per_user": 200_000})
        async with open_api(settings) as api:
            owner, reader = await api.user("owner"), await api.user("reader", groups=("readers",))
            administrator = await api.user("administrator", admin=True)
            await _fill(api, dsn, owner)
            measured: list[Measured] = []
            for name, caller in (("owner of 50,000", owner), ("reader of 20,000 shared", reader)):
                for kind, query in _LISTS.items():
                    measured.append(await _list(caller, f"{name}: list {kind}", query))
                measured.append(await _deep_pages(caller, name))
                for kind, text in _SEARCHES.items():
                    measured.append(await _search(caller, f"{name}: search {kind}", text))
            for kind, query in _LISTS.items():
                name = f"administrator: list of all {kind}"
                measured.append(await _list(administrator, name, {**query, "all": "true"}))
            return [*measured, *await _saves(owner), await _gift(administrator, owner, reader)]


async def _fill(api: Api, dsn: str, owner: Caller) -> None:
    id_of = "select id from users where username = $1"
    others = [
        await api.database.value(
            "insert into users (username, username_key) values ($1, $1) returning id", f"other{number}"
        )
        for number in range(_OTHERS)
    ]
    plain = await asyncpg.connect(dsn)  # without a time limit
    await plain.execute("drop index ix_document_trigrams")
    await plain.execute(_DOCUMENTS, await plain.fetchval(id_of, owner.username), others)
    await plain.execute(_GRANTS)
    await plain.execute("create index ix_document_trigrams on document_trigrams using gin (trigrams)")
    for table in ("documents", "document_grants", "document_trigrams"):
        await plain.execute(f"vacuum analyze {table}")
    await plain.close()


async def _list(caller: Caller, name: str, query: Mapping[str, Any]) -> Measured:
    times, found = list[float](), 0
    for _ in range(_ROUNDS):
        ms, body = await _timed(caller, "GET", "documents", params=query)
        times.append(ms)
        found = len(body["documents"])
    return _measured(f"{name} ({found})", times)


async def _deep_pages(caller: Caller, name: str) -> Measured:
    chance, times = random.Random(7), list[float]()
    for _ in range(_ROUNDS):
        at = time.time() - 60 * chance.randrange(100_000)  # one document was saved in each minute
        times.append((await _timed(caller, "GET", "documents", params={"after": f"{int(at * 1_000_000)}-1"}))[0])
    return _measured(f"{name}: list any page", times)


async def _search(caller: Caller, name: str, text: str) -> Measured:
    times, total = list[float](), 0
    fields = {"query_s": text, "sources": '["documents"]'}
    for _ in range(_ROUNDS):
        ms, body = await _timed(caller, "POST", "metadata/search/entities_interactive", data=fields)
        times.append(ms)
        total = body["totalMatched"]
    return _measured(f"{name} ({total:,})", times, target="")


async def _gift(administrator: Caller, owner: Caller, to: Caller) -> Measured:
    fields = {"from_user": owner.username, "to_user": to.username}
    ms, body = await _timed(administrator, "POST", "documents/change_owner", json=fields)
    return Measured(f"all documents of the owner to another user ({body['changed']:,})", f"{ms:,.0f} ms", "")


async def _saves(owner: Caller) -> list[Measured]:
    created, changed, read, configured = list[float](), list[float](), list[float](), list[float]()
    for number in range(_ROUNDS):
        uuid = str(uuid4())
        document = {"uuid": uuid, "name": f"new {number}", "statement": "SELECT 1", "connector": "mysql"}
        created.append((await _timed(owner, "POST", "documents/save", json={"document": document}))[0])
        document |= {"version": 1, "statement": "SELECT 2"}
        changed.append((await _timed(owner, "POST", "documents/save", json={"document": document}))[0])
        read.append((await _timed(owner, "GET", f"documents/{uuid}"))[0])
        configured.append((await _timed(owner, "POST", "get_config"))[0])
    return [
        _measured("owner of 50,000: create a document", created),
        _measured("owner of 50,000: save a new version", changed),
        _measured("owner of 50,000: get a document", read),
        _measured("owner of 50,000: get_config", configured),
    ]


async def _timed(caller: Caller, method: str, path: str, **more: Any) -> tuple[float, dict[str, Any]]:
    """Make a call without the checks of the tests. Returns its time in milliseconds and the response body."""
    began = time.perf_counter()
    response = await caller.api.http.request(method, f"/api/v1/{path}", headers=dict(caller.headers), **more)
    ms = (time.perf_counter() - began) * 1000
    assert response.status_code == 200, response.text
    return ms, response.json()


def _measured(name: str, times: list[float], *, target: str = "≤ 50 ms") -> Measured:
    cuts = quantiles(times, n=20)
    return Measured(f"{name}: p50, p95", f"{cuts[9]:.0f}, {cuts[18]:.0f} ms", target)
