"""API tokens and service accounts (issue 20, section 2; ADR 62)."""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from pydantic import SecretStr
from tests.api.conftest import SECRET_KEY
from tests.api.driving import Api, Caller, until, verdict
from tests.api.test_conventions import name_of
from tests.api.test_every_call import SECURED, concrete
from tests.api.test_logs import Event, about, audited
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, link, log_in, not_valid
from tests.operations import NO_SCOPE, Operation
from tests.unit.cli.test_commands import command_in

from queryserver.errors.base import Conflict
from queryserver.identity.api_tokens import PREFIX, NewApiToken, digest_of
from queryserver.identity.explainer import API_TOKEN_CHECKS, Explainer
from queryserver.identity.keys import Keyring, SecretKey
from queryserver.identity.model import AuthenticatedUser, Scope
from queryserver.platform.logs import configure_logging, stop_logging
from queryserver.platform.settings.desktop import LoggingSettings

__all__ = ["audited"]  # a fixture

LACKING = 'Bearer realm="api", error="insufficient_scope", scope="{}"'
ALL_BUT_ADMIN = [scope.value for scope in Scope if scope is not Scope.ADMIN]


async def made(caller: Caller, *scopes: str, name: str = "", **fields: Any) -> dict[str, Any]:
    """Create a token for the caller; return the response body."""
    fields = {"name": name or f"token {uuid4()}", "scopes": list(scopes or ["query"]), **fields}
    response = await caller.post_json("token/api_tokens/new", **fields)
    assert response.status_code == 200, response.text
    return response.json()


_NINETY_EIGHT = """
    insert into api_tokens (id, user_id, name, digest, scopes, token_epoch, created_by, expires_at)
    select gen_random_uuid(), u.id, 'n' || g, decode(md5(u.id || '-' || g), 'hex'), '{query}', 0, '',
        now() + interval '1 day'
    from users u, generate_series(1, 98) g where u.username = $1
"""

_DISABLE_OWNER = "update users set is_active = false where id in (select user_id from api_tokens where id = $1)"


def holder(api: Api, token: Mapping[str, Any]) -> Caller:
    """Return a program that authenticates with this token."""
    return Caller(api, token["token"]["username"], {"Authorization": f"Bearer {token['value']}"})


async def holding(caller: Caller, *scopes: str, **fields: Any) -> Caller:
    return holder(caller.api, await made(caller, *scopes, **fields))


def lacking(response: httpx.Response) -> str | None:
    """Return the missing scope that the response names. Returns None if the call was not refused for a missing
    scope.
    """
    if response.status_code != 403 or response.json().get("code") != "insufficient_scope":
        return None
    scope = response.headers["WWW-Authenticate"].rpartition("scope=")[2].strip('"')
    assert response.headers["WWW-Authenticate"] == LACKING.format(scope)
    assert scope in json.dumps(response.json())
    return scope


class TestTokens:
    async def test_new_token_is_shown_once_and_authenticates_its_user(self, ana: Caller, audited: list[Event]):
        response = await made(ana, "query", "import", name="nightly", expires_in_days=7)
        token, value = response["token"], response["value"]
        assert value.startswith(PREFIX)
        assert len(value) == len(PREFIX) + 43
        assert UUID(token["id"])
        begins, ends = (datetime.fromisoformat(token[name]) for name in ("created_at", "expires_at"))
        assert ends - begins == timedelta(days=7)
        shown = {"name": "nightly", "username": ana.username, "scopes": ["import", "query"], "connectors": None}
        assert token == {
            **token, **shown, "state": "active", "created_by": ana.username, "last_used_at": None
        }  # fmt: skip
        assert (await holder(ana.api, response).run("duckdb", "select 7"))["status"] == 0
        listed = (await ana.get("token/api_tokens")).json()
        assert (listed["count"], [one["id"] for one in listed["tokens"]]) == (1, [token["id"]])
        assert value not in json.dumps(listed)
        [event] = about(audited, "api_token.new")
        assert (event["user"], event["subject"]) == (ana.username, ana.username)
        assert (event["subject_id"], event["subject_name"], event["outcome"]) == (token["id"], "nightly", "ok")

    @pytest.mark.parametrize(("fields", "code"),
        [({"name": ""}, "invalid_parameter"), ({"name": "x" * 101}, "invalid_parameter"),
        ({"name": None}, "missing_parameter"), ({"scopes": []}, "invalid_parameter"),
        ({"scopes": ["all"]}, "invalid_parameter"), ({"scopes": None}, "missing_parameter"),
        ({"scopes": ["admin"]}, "invalid_parameter"), ({"expires_in_days": 0}, "invalid_parameter"),
        ({"expires_in_days": 366}, "invalid_parameter"), ({"connectors": ["nowhere"]}, "invalid_parameter"),
        ({"connectors": ["vault"]}, "invalid_parameter")])  # fmt: skip
    async def test_what_is_no_token_is_refused(self, ana: Caller, fields: dict[str, Any], code: str):
        answer = await ana.post_json("token/api_tokens/new", **{"name": "x", "scopes": ["query"], **fields})
        assert (answer.status_code, answer.json()["code"]) == (400, code)

    async def test_form_accepts_scopes_as_comma_list_or_json(self, ana: Caller):
        for scopes in ("query,import", '["import", "query"]'):
            response = await ana.post("token/api_tokens/new", name=scopes, scopes=scopes, connectors="duckdb, sqlite")
            token = response.json()["token"]
            assert (token["scopes"], token["connectors"]) == (["import", "query"], ["duckdb", "sqlite"])

    async def test_token_name_is_reusable_after_the_token_has_ended(self, ana: Caller):
        first = await made(ana, name="one")
        again = {"name": "one", "scopes": ["query"]}
        taken = await ana.post_json("token/api_tokens/new", **again)
        assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
        await ana.post_ok("token/api_tokens/revoke", id=first["token"]["id"])
        assert (await made(ana, name="one"))["token"]["id"] != first["token"]["id"]
        states = [one["state"] for one in (await ana.get("token/api_tokens")).json()["tokens"]]
        assert states == ["revoked", "active"]

    async def test_hundred_token_limit_holds_under_concurrent_calls(self, ana: Caller):
        await ana.api.database.execute(_NINETY_EIGHT, ana.username)
        names = [{"name": f"last {n}", "scopes": ["query"]} for n in range(4)]
        answers = await asyncio.gather(*(ana.post_json("token/api_tokens/new", **one) for one in names))
        assert sorted(one.status_code for one in answers) == [200, 200, 429, 429]
        assert {one.json()["code"] for one in answers if one.status_code == 429} == {"too_many_api_tokens"}

    async def test_users_manage_their_own_tokens_and_administrators_manage_all(
        self, api: Api, ana: Caller, bob: Caller
    ):
        root = await api.user("boss", admin=True)
        token = await made(root, username=ana.username, name="for ana")
        assert (token["token"]["username"], token["token"]["created_by"]) == (ana.username, root.username)
        assert (await bob.get("token/api_tokens", username=ana.username)).json()["code"] == "admin_required"
        assert (await bob.get("token/api_tokens", all="true")).json()["code"] == "admin_required"
        given = await bob.post_json("token/api_tokens/new", name="x", scopes=["query"], username=ana.username)
        assert (given.status_code, given.json()["code"]) == (403, "admin_required")
        foreign = await bob.post("token/api_tokens/revoke", id=token["token"]["id"])
        unknown = await bob.post("token/api_tokens/revoke", id=str(uuid4()))
        assert verdict(foreign) == verdict(unknown) == (404, -1, "api_token_not_found")
        assert (await ana.get("token/api_tokens", username=ana.username.upper())).json()["count"] == 1
        mine = {one["id"] for one in (await root.get("token/api_tokens", all="true")).json()["tokens"]}
        assert token["token"]["id"] in mine
        nobody = await root.post_json("token/api_tokens/new", name="x", scopes=["query"], username="nobody.at.all")
        assert (nobody.status_code, nobody.json()["code"]) == (404, "unknown_user")
        ended = await root.post_ok("token/api_tokens/revoke", id=token["token"]["id"])
        assert ended["token"]["state"] == "revoked"
        assert await root.post_ok("token/api_tokens/revoke", id=token["token"]["id"]) == ended


class TestEnds:
    async def test_ended_token_is_refused_like_an_unknown_token(self, ana: Caller):
        """The clock of the service database determines whether a token has expired."""
        api, revoked, expired = ana.api, await made(ana), await made(ana)
        for token in (revoked, expired):
            assert (await bearer(api, token["value"])).status_code == 200
        await ana.post_ok("token/api_tokens/revoke", id=revoked["token"]["id"])
        await api.database.execute(
            "update api_tokens set expires_at = now() where id = $1", UUID(expired["token"]["id"])
        )
        values = (revoked["value"], expired["value"], PREFIX + "A" * 43, PREFIX + "é", PREFIX, revoked["value"] + "A")
        for value in values[:3] + values[4:]:
            answer = await bearer(api, value)
            assert (answer.status_code, answer.json()) == (401, not_valid())
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="api"'
        states = {one["id"]: one["state"] for one in (await ana.get("token/api_tokens")).json()["tokens"]}
        assert states == {revoked["token"]["id"]: "revoked", expired["token"]["id"]: "expired"}

    async def test_api_token_ends_with_all_tokens_of_its_user(self, tokens: Api):
        pair = await log_in(tokens)
        ana = Caller(tokens, "ana", {"Authorization": f"Bearer {pair['access']}"})
        for end in ("all", "password", "disable"):
            token = await made(ana)
            assert (await bearer(tokens, token["value"])).status_code == 200
            match end:
                case "all":
                    await tokens.stranger.post_ok("token/revoke", refresh=pair["refresh"], all="true")
                case "password":
                    await accounts(tokens).set_password("ana", PASSWORD)
                case _:
                    await accounts(tokens).disable("ana")
            answer = await bearer(tokens, token["value"])
            inactive = {"detail": "User is inactive", "code": "user_inactive"}
            assert (answer.status_code, answer.json()) == (401, inactive if end == "disable" else not_valid())
            await accounts(tokens).enable("ana")
            assert (await bearer(tokens, token["value"])).json() == not_valid()
            pair = await log_in(tokens)
            ana = Caller(tokens, "ana", {"Authorization": f"Bearer {pair['access']}"})

    async def test_api_tokens_can_be_verified_but_not_refreshed_or_logged_out(self, ana: Caller):
        token = await made(ana)
        stranger, value = ana.api.stranger, token["value"]
        assert (await stranger.post("token/verify", token=value)).json() == {}
        refused = await stranger.post("token/refresh", refresh=value)
        assert (refused.status_code, refused.json()["code"]) == (401, "token_not_valid")
        for everything in ("false", "true"):
            assert (await stranger.post("token/revoke", token=value, all=everything)).json() == {}
        assert (await holder(ana.api, token).post("token/revoke")).json() == {}
        assert (await bearer(ana.api, value)).status_code == 200, "a logout ends no API token"
        await ana.post_ok("token/api_tokens/revoke", id=token["token"]["id"])
        assert (await stranger.post("token/verify", token=value)).status_code == 401

    async def test_running_calls_end_with_their_token(self, opener: Opener):
        """The token is revoked during a hundred concurrent calls and one waiting call. No call may succeed after
        that.
        """
        async with opener(recheck_s=1) as api:
            await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
            ana = Caller(api, "ana", {"Authorization": f"Bearer {(await log_in(api))['access']}"})
            token = await made(ana)
            program = holder(api, token)
            operation = (await program.execute("mysql", "sleep 600"))["history_uuid"]
            await program.running(operation)
            waiting = asyncio.create_task(program.post("editor/check_status", operationId=operation, wait=60))
            codes = [one.status_code for one in await asyncio.gather(*(bearer(api, token["value"]) for _ in range(50)))]
            revoking = asyncio.create_task(ana.post_ok("token/api_tokens/revoke", id=token["token"]["id"]))
            during = await asyncio.gather(*(bearer(api, token["value"]) for _ in range(50)))
            await revoking
            assert set(codes) == {200}
            assert {one.status_code for one in during} <= {200, 401}
            assert (await bearer(api, token["value"])).status_code == 401
            assert (await waiting).status_code == 401
            # The statement belongs to the user, so it continues to run.
            assert await ana.state(operation) == "running"
            await ana.on(operation, "cancel_statement")

    async def test_refused_tokens_are_throttled_by_address_but_valid_tokens_are_not(self, opener: Opener):
        async with opener(login_failures_per_address=3) as api:
            await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
            ana = Caller(api, "ana", {"Authorization": f"Bearer {(await log_in(api))['access']}"})
            token = await made(ana)
            assert (await bearer(api, token["value"])).status_code == 200
            answers = [await bearer(api, PREFIX + letter * 43) for letter in "ABCD"]
            assert [one.status_code for one in answers] == [401, 401, 401, 429]
            assert answers[3].json()["code"] == "login_throttled"
            assert int(answers[3].headers["Retry-After"]) > 200
            assert (await bearer(api, token["value"])).status_code == 200
            assert (await log_in(api))["access"], "logins count apart"


@pytest.fixture(scope="module")
async def holders(api: Api) -> dict[str, tuple[Caller, Caller]]:
    """Two callers for each scope: the first has a token with only that scope, the second a token with all scopes that
    do not include it. The tokens belong to an administrator.
    """
    root = await api.user("scoped", admin=True)
    including = {scope: {scope} for scope in Scope} | {Scope.QUERY_READ: {Scope.QUERY_READ, Scope.QUERY}}
    return {
        scope.value: (await holding(root, scope), await holding(root, *(set(Scope) - including[scope])))
        for scope in Scope
    }


class TestRights:
    @pytest.mark.parametrize("one", SECURED, ids=name_of)
    async def test_each_call_accepts_only_its_documented_scope(
        self, holders: dict[str, tuple[Caller, Caller]], one: Operation
    ):
        # No call accepts a body of this type, so the calls have no effect.
        body = {} if one.method == "GET" else {"content": b"x", "headers": {"Content-Type": "text/plain"}}
        if one.scope == NO_SCOPE:
            for alone, _ in holders.values():
                answer = await alone.send(one.method, concrete(one), **body)
                assert answer.status_code != 401
                assert lacking(answer) is None
            return
        alone, others = holders[one.scope]
        assert lacking(await others.send(one.method, concrete(one), **body)) == one.scope
        let_in = await alone.send(one.method, concrete(one), **body)
        assert let_in.status_code not in {401, 500}
        assert lacking(let_in) is None
        assert b"admin_required" not in let_in.content

    async def test_token_grants_no_more_rights_than_its_user_has(self, api: Api, ana: Caller):
        await api.user("another", admin=True)
        root = await api.user("fallen", admin=True)
        admin, program = await holding(root, "admin"), await holding(ana, *ALL_BUT_ADMIN)
        assert (await admin.get("iam/get_users")).status_code == 200
        assert lacking(await program.get("iam/get_users")) == "admin"
        await accounts(api).set_admin(root.username, admin=False)
        assert lacking(await admin.get("iam/get_users")) == "admin"
        assert lacking(await admin.get("token/api_tokens")) == "admin"
        await accounts(api).set_admin(root.username, admin=True)
        assert (await admin.get("iam/get_users")).status_code == 200

    async def test_token_loses_a_right_as_soon_as_its_user_does(self, opener: Opener):
        async with opener() as api:
            ana = await api.user("ana")
            program = await holding(ana, "import")
            assert (await program.get("importer/sql_type_mapping", sql_dialect="hive")).status_code == 200
            await api.database.execute("delete from group_rights where \"right\" = 'importer'")
            refused = await program.get("importer/sql_type_mapping", sql_dialect="hive")
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")

    async def test_administrators_token_without_admin_scope_acts_as_a_regular_user(self, api: Api, ana: Caller):
        root = await api.user("modest", admin=True)
        program, whole = await holding(root, "query"), await holding(root, "query", "admin")
        operation = (await ana.run("duckdb", "select 1"))["history_uuid"]
        assert (await root.on(operation, "check_status"))["status"] == 0
        assert (await whole.on(operation, "check_status"))["status"] == 0
        assert (await program.post("editor/check_status", operationId=operation)).status_code == 404
        assert (await program.post_ok("get_config"))["hue_config"]["is_admin"] is False
        # An administrator may use all connectors, including those that are restricted to groups.
        assert (await program.run("closed", "rows 1"))["status"] == 0

    async def test_administrators_token_cannot_grant_more_than_its_own_scopes(self, api: Api, audited: list[Event]):
        root = await api.user("minting", admin=True)
        token = await made(root, "admin", "query")
        program = holder(api, token)
        child = await made(program, "query", username=root.username)
        assert child["token"]["created_by"] == root.username
        refused = await program.post_json("token/api_tokens/new", name="more", scopes=["files:write"])
        assert lacking(refused) == "files:write"
        limited = await root.post_json("token/api_tokens/new", name="x", scopes=["admin"], connectors=["duckdb"])
        assert (limited.status_code, limited.json()["code"]) == (400, "invalid_parameter")
        assert {one["subject_id"] for one in about(audited, "api_token.new") if one["outcome"] == "ok"} == {
            token["token"]["id"], child["token"]["id"]
        }  # fmt: skip

    async def test_statement_schedules_also_require_the_query_scope(self, api: Api):
        root = await api.user("planning", admin=True)
        admin, both = await holding(root, "admin"), await holding(root, "admin", "query")
        plan = {"kind": "statement", "connector": "duckdb", "statement": "select 1", "interval_s": 86400}
        assert lacking(await admin.post_json("taskserver/schedules/new", schedule={"name": "a", **plan})) == "query"
        made = await both.post_json("taskserver/schedules/new", schedule={"name": "b", **plan})
        schedule = made.json()["schedule"]["id"]
        change = {"id": schedule, "statement": "select 2"}
        assert lacking(await admin.post_json("taskserver/schedules/update", schedule=change)) == "query"
        assert lacking(await admin.post_json("taskserver/schedules/run", schedule={"id": schedule})) == "query"
        task = {"name": "c", "kind": "task", "task": "result_cleanup", "interval_s": 86400}
        of_task = await admin.post_json("taskserver/schedules/new", schedule=task)
        assert of_task.status_code == 200, of_task.text
        assert (await admin.post_json("taskserver/schedules/delete", schedule={"id": schedule})).status_code == 200

    async def test_connectors_outside_the_token_are_treated_as_not_granted(self, ana: Caller):
        program = await holding(ana, "query", "import", "files:read", connectors=["duckdb"])
        foreign = (await ana.run("sqlite", "select 1"))["history_uuid"]
        assert (await program.run("duckdb", "select 1"))["status"] == 0
        for call, fields in {
            "editor/execute/sqlite": {"statement": "select 1"},
            "editor/autocomplete": {"snippet": '{"type": "sqlite"}'},
            "editor/sample/main/t": {"snippet": '{"type": "sqlite"}'},
            "editor/explain/sqlite": {"statement": "select 1"},
            "editor/create_session": {"session": '{"type": "sqlite"}'},
            "editor/fetch_result_data": {"operationId": foreign},
        }.items():
            unknown = {name: text.replace("sqlite", "closed") for name, text in fields.items()}
            refused = await program.post(call, **fields)
            assert refused.status_code in {400, 403, 404}, (call, refused.text)
            if "operationId" not in fields:
                granted_to_others = await ana.post(call.replace("sqlite", "closed"), **unknown)
                assert verdict(refused) == verdict(granted_to_others), call
        shown = await program.post_ok("get_config")
        assert {one["type"] for one in shown["app_config"]["editor"]["interpreters"]} == {"duckdb"}

    async def test_token_does_not_see_statements_of_other_connectors(self, ana: Caller):
        program = await holding(ana, "query", connectors=["duckdb"])
        foreign = (await ana.run("sqlite", "select 'needle' as a"))["history_uuid"]
        own = (await program.run("duckdb", "select 'needle' as b"))["history_uuid"]
        for fields in ({}, {"doc_type": "sqlite"}, {"doc_type": "duckdb"}):
            shown = await program.history(**fields)
            expected = [] if fields == {"doc_type": "sqlite"} else [own]
            assert [one["uuid"] for one in shown["history"]] == expected, shown
            assert shown["count"] == len(expected)
        for caller, count in ((program, 1), (ana, 2)):
            found = await caller.post_ok(
                "metadata/search/entities_interactive", query_s="needle", sources='["documents"]'
            )
            assert found["count"] == count, found
        sessions = {
            name: (await ana.post_ok("editor/create_session", session=json.dumps({"type": name})))["session"]["id"]
            for name in ("sqlite", "duckdb")
        }
        for call in ("check_status", "get_logs", "cancel_statement", "close_statement"):
            refused = await program.post(f"editor/{call}", operationId=foreign)
            assert verdict(refused)[::2] == (404, "operation_not_found"), call
        for call in ({"type": "sqlite", "id": sessions["sqlite"]}, {"type": "sqlite"}):
            refused = await program.post("editor/close_session", session=json.dumps(call))
            assert refused.status_code == 404, refused.text
        assert (await ana.on(foreign, "check_status"))["query_status"]["status"] == "available"
        closed = await program.post_ok(
            "editor/close_session", session=json.dumps({"type": "duckdb", "id": sessions["duckdb"]})
        )
        assert closed["status"] == 0
        still_open = await ana.post_ok(
            "editor/close_session", session=json.dumps({"type": "sqlite", "id": sessions["sqlite"]})
        )
        assert still_open["session"], still_open

    async def test_token_use_is_recorded_to_the_minute_outside_the_call(self, ana: Caller):
        token = await made(ana)
        program = holder(ana.api, token)
        assert (await program.history())["count"] == 0

        async def is_noted() -> bool:
            return (await ana.get("token/api_tokens")).json()["tokens"][0]["last_used_at"] is not None

        await until(is_noted)
        used = "select last_used_at from api_tokens where id = $1"
        before = await ana.api.database.value(used, UUID(token["token"]["id"]))
        await program.history()
        bearers = ana.api.services.accounts.tokens.api_tokens
        assert bearers is not None
        await bearers.note_uses()
        assert await ana.api.database.value(used, UUID(token["token"]["id"])) == before


async def test_database_and_log_contain_no_token_and_the_audit_log_names_it(opener: Opener, tmp_path: Path):
    file = tmp_path / "server.log"
    configure_logging(LoggingSettings(file=file, level="DEBUG", format="json"))
    async with opener() as api:
        ana = await api.user("ana")
        token = await made(ana, "query")
        value, program = token["value"], holder(api, token)
        operation = (await program.run("duckdb", "select 1"))["history_uuid"]
        await api.stranger.post("token/verify", token=value)
        assert lacking(await program.get("storage/filesystems")) == "files:read"
        await ana.post_ok("token/api_tokens/revoke", id=token["token"]["id"])
        await bearer(api, value)
        tables = await api.database.fetch(
            "select format('%I.%I', schemaname, tablename) as name from pg_tables"
            " where schemaname not in ('pg_catalog', 'information_schema')"
        )
        assert len(tables) > 20
        for table in tables:
            found = await api.database.value(
                f"select count(*) from {table['name']} t where strpos(t::text, $1) > 0", value.removeprefix(PREFIX)
            )
            assert found == 0, table["name"]
        assert await api.database.value("select digest from api_tokens") == digest_of(value)
    stop_logging()
    log = file.read_text()
    assert PREFIX not in log, "not even masked: nothing writes it"
    lines = [json.loads(line) for line in log.splitlines()]
    [started] = [line for line in lines if line["event"] == "statement.start"]
    assert (started["operation_id"], started["token_id"]) == (operation, token["token"]["id"])
    assert {line["event"] for line in lines if line.get("subject_id") == token["token"]["id"]} == {
        "api_token.new", "api_token.revoke"
    }  # fmt: skip


async def test_tokens_that_ended_a_month_ago_are_deleted(opener: Opener):
    async with opener() as api:
        ana = await api.user("ana")
        ids = [UUID((await made(ana, name=name))["token"]["id"]) for name in ("live", "late", "old", "revoked")]
        for changed, at in zip(ids[1:], ("expires_at", "expires_at", "revoked_at"), strict=True):
            age = "29 days" if changed == ids[1] else "31 days"
            await api.database.execute(f"update api_tokens set {at} = now() - interval '{age}' where id = $1", changed)
        await api.services.statements.retention.clean_up()
        listed = (await ana.get("token/api_tokens")).json()["tokens"]
        assert [(one["name"], one["state"]) for one in listed] == [("live", "active"), ("late", "expired")]


class TestServiceAccounts:
    async def test_service_account_has_tokens_but_cannot_log_in(
        self, tmp_path: Path, database_dsn: str, opener: Opener
    ):
        command = command_in(
            tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn, QUERYSERVER__DESKTOP__SECRET_KEY=SECRET_KEY
        )
        assert (await command("create-user", "robot", "--service-account")).out == "User robot created.\n"
        listed = (await command("list-users", "--no-header")).out
        assert listed.splitlines() == ["robot\tservice\tactive\tdefault\t"]
        more = ("--connector", "duckdb", "--max-estimated-bytes", "5000000")
        new = await command("token", "new", "robot", "nightly", "--scope", "query", *more)
        value = new.out.strip()
        assert (new.code, value in new.err, "api_token.new" in new.err) == (0, False, True)
        password = await command("set-password", "robot", "--password-stdin", stdin=f"{PASSWORD}\n")
        linked = await command("link-user", "robot", "--issuer", "ldap")
        assert (password.code, linked.code) == (1, 2), "there is no ldap here"
        assert "robot is a service account and can only have API tokens.\n" in password.err
        async with opener() as api:
            await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
            assert (await bearer(api, value)).status_code == 200
            answers = [
                await api.stranger.post("token/auth", username=name, password=PASSWORD + "x")
                for name in ("robot", "ana", "unknown")
            ]
            assert {one.status_code for one in answers} == {401}
            assert len({one.text for one in answers}) == 1
        explained = json.loads((await command("auth", "explain", "--json", stdin=value)).out)
        assert explained["accepted"] is True
        texts = {one["check"]: one["text"] for one in explained["checks"]}
        assert (texts["user"], texts["rights"]) == ("robot", "scopes query; connectors duckdb")
        listing = await command("token", "list", "robot", "--json")
        assert listing.code == 0, listing.err
        listed = json.loads(listing.out)
        assert [one["max_estimated_bytes"] for one in listed] == [5_000_000]
        token_id = (await command("token", "list", "robot", "--no-header")).out.strip().rpartition("\t")[2]
        assert (await command("token", "revoke", token_id)).out == "API token nightly of robot revoked.\n"
        refused = await command("auth", "explain", stdin=value)
        assert (refused.code, f"nightly ({token_id}) was revoked" in refused.out) == (1, True)
        assert value not in json.dumps(explained) + refused.out + refused.err

    async def test_explain_names_the_refusal_cause_and_prints_no_token_part(self, opener: Opener):
        async with opener() as api:
            ana, services = await api.user("ana"), api.services.accounts
            keyring, callers = Keyring(SecretKey.derive(SecretStr(SECRET_KEY))), services.directory
            explainer = Explainer(keyring, callers, takes_own=True, takes_api_tokens=True, external=None)
            ends: dict[str, tuple[str, str, str]] = {
                "revoked": ("token", "revoked", "update api_tokens set revoked_at = now() where id = $1"),
                "expired": ("times", "it expired 20", "update api_tokens set expires_at = now() where id = $1"),
                "ended": ("user", "all tokens of", "update api_tokens set token_epoch = 7 where id = $1"),
                "disabled": ("user", "is disabled", _DISABLE_OWNER),
            }  # fmt: skip
            made_ones = {name: await made(ana, name=name) for name in ends}
            for name, (check, text, change) in ends.items():
                value, token_id = made_ones[name]["value"], UUID(made_ones[name]["token"]["id"])
                assert [one.passed for one in await explainer.explain(value)] == [True] * len(API_TOKEN_CHECKS)
                await api.database.execute(change, token_id)
                [refused] = [one for one in await explainer.explain(value) if one.passed is False]
                assert (refused.check, text in refused.text) == (check, True), refused
                assert value.removeprefix(PREFIX) not in repr(await explainer.explain(value))
            for value, check in ((PREFIX + "A" * 43, "token"), (PREFIX + "A", "form")):
                assert [one.check for one in await explainer.explain(value) if one.passed is False] == [check]
            off = Explainer(keyring, callers, takes_own=True, takes_api_tokens=False, external=None)
            [refused] = [one for one in await off.explain(PREFIX + "A" * 43) if one.passed is False]
            assert "desktop.auth.api_auth" in refused.text

    async def test_api_tokens_are_refused_unless_enabled_in_the_settings(self, opener: Opener):
        async with opener(api_auth=("jwt",)) as api:
            token = await made(await api.user("ana"))
            assert (await bearer(api, token["value"])).json() == not_valid()
            assert (await api.stranger.post("token/verify", token=token["value"])).status_code == 401

    async def test_external_identity_cannot_become_a_service_account(self, external: Api, issuer: Any):
        await accounts(external).create(AuthenticatedUser("robot"), "", is_service_account=True)
        tokens = external.services.accounts.api_tokens
        _, value = await tokens.create("robot", NewApiToken("one", frozenset({Scope.QUERY})), by="root")
        assert (await bearer(external, value)).status_code == 200
        with pytest.raises(Conflict, match="is a service account"):
            await link(external, "robot")
        answer = await bearer(external, issuer.token(sub="robot"))
        assert (answer.status_code, answer.json()) == (401, not_valid())
        assert await external.database.value("select count(*) from external_identities") == 0
