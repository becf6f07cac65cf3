"""Attacks on user identities: usernames from other issuers, disabled and demoted users, and guessed passwords."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api, verdict
from tests.api.token.logins import PASSWORD, accounts, bearer, link, log_in, not_valid, refusals
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer

from queryserver.identity.build import open_explainer
from queryserver.identity.model import AuthenticatedUser, ExternalIdentity, Username
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.identity.users import Groups, Identities
from queryserver.platform.settings.desktop import AuthSettings, JwtSettings

Opener = Callable[..., AbstractAsyncContextManager[Api]]

_NO_DATABASE = "postgresql://api_tests:planted-secret@127.0.0.1:1/none"
_SYNC = "tests.fakes.plug_ins.Sync"
_GROUPED = "tests.fakes.plug_ins.GroupedUserAuth"
_DOOR = "tests.fakes.plug_ins.Door"
_NOT_FOUND = {"detail": "User not found", "code": "user_not_found"}
WRONG = "not the password"
_INACTIVE = {"detail": "User is inactive", "code": "user_inactive"}


def _links(api: Api) -> Identities:
    return Identities(api.database, AuthSettings(jwt=JwtSettings(issuer="*")))


@pytest.fixture
def opener(tmp_path: Path, database_dsn: str) -> Opener:
    """A function that opens separate applications with the given settings in `desktop` and `desktop.auth`."""

    def opened(desktop: Mapping[str, Any] | None = None, **auth: Any) -> AbstractAsyncContextManager[Api]:
        return open_api(make_settings(tmp_path, database_dsn, _NO_DATABASE, desktop={"auth": auth, **(desktop or {})}))

    return opened


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
async def external(opener: Opener, issuer: Issuer) -> AsyncIterator[Api]:
    """An application that accepts users of an external issuer and of the authenticator `Sync`. It has the local
    administrator `admin`.
    """
    jwt = {"issuer": ISSUER, "audience": AUDIENCE}
    async with (
        issuer.serving() as url,
        opener(jwt={"key_server_url": url, **jwt}, api_auth=("custom_jwt", _SYNC, "jwt")) as api,
    ):
        await accounts(api).create(AuthenticatedUser("admin"), PASSWORD, is_admin=True)
        yield api


@pytest.fixture
async def quick(opener: Opener) -> AsyncIterator[Api]:
    """An application that rechecks the users of long-running calls every second."""
    async with opener(recheck_s=1) as api:
        yield api


async def named(api: Api, name: str) -> httpx.Response:
    """Make a call that the authenticator `Sync` authenticates as this user."""
    return await Caller(api, "", {"X-Sync": name}).get("editor/get_history")


async def administrator(api: Api) -> Caller:
    """Create two administrators and return one of them. A test may disable this user, because one administrator
    remains.
    """
    await api.user(admin=True)
    return await api.user(admin=True)


async def leave(api: Api, caller: Caller, group: str) -> None:
    await Groups(api.database, AuthSettings()).remove(caller.username, group)


class TestNamesOfOtherIssuers:
    @pytest.mark.parametrize("subject", ["\uff41dmin", "ADMIN", " admin ", "Admin", "admin"])
    async def test_subject_in_any_spelling_is_not_the_local_administrator(
        self, external: Api, issuer: Issuer, subject: str
    ) -> None:
        token = issuer.token(sub=subject)
        with capture_logs() as lines:
            assert (await bearer(external, token)).json() == not_valid()
        assert [check for check, _ in refusals(lines)] == ["user"]
        refused = await external.stranger.post("token/verify", token=token)
        assert refused.json() == not_valid(detail="Token is invalid or expired")
        await external.stranger.post("token/revoke", token=token, all="true")
        assert await log_in(external, "admin")
        assert [one.username for one in await accounts(external).all()] == ["admin"]

    @pytest.mark.parametrize("name", ["ADMIN", "Admin", "admin"])
    async def test_name_from_an_authenticator_in_any_spelling_is_not_the_local_administrator(
        self, external: Api, name: str
    ) -> None:
        assert (await named(external, name)).json() == _NOT_FOUND
        assert [one.username for one in await accounts(external).all()] == ["admin"]

    async def test_subject_not_in_normal_form_creates_no_user(self, external: Api, issuer: Issuer) -> None:
        for subject in ("Eve", " eve", "\uff45ve"):
            assert (await bearer(external, issuer.token(sub=subject))).json() == not_valid()
        assert (await bearer(external, issuer.token(sub="eve"))).status_code == 200
        assert [one.username for one in await accounts(external).all()] == ["admin", "eve"]

    async def test_subject_not_in_normal_form_does_not_match_passwordless_user(
        self, external: Api, issuer: Issuer
    ) -> None:
        records = AccountRepository(external.database)
        await records.create(NewAccount(Username("ana", "ana")), default_group="default")
        for subject in ("ANA", " ana", "\uff41na"):
            assert (await bearer(external, issuer.token(sub=subject))).json() == not_valid()
        assert await _links(external).all() == []
        assert (await bearer(external, issuer.token())).status_code == 200

    async def test_login_back_end_cannot_name_the_local_administrator(self, opener: Opener) -> None:
        async with opener(backend=("local", _DOOR)) as api:
            await accounts(api).create(AuthenticatedUser("admin"), PASSWORD, is_admin=True)
            refused = await api.stranger.post("token/auth", username="admin", password="let me in")
            wrong = await api.stranger.post("token/auth", username="admin", password="wrong")
            assert (refused.status_code, refused.text) == (401, wrong.text)
            assert await log_in(api, "admin")
            await link(api, "admin", issuer=_DOOR)
            assert await log_in(api, "admin", "let me in")

    async def test_administrator_without_password_is_unknown_to_other_issuers(
        self, external: Api, issuer: Issuer
    ) -> None:
        records = AccountRepository(external.database)
        await records.create(NewAccount(Username("root", "root"), is_admin=True), default_group="default")
        await records.ensure_group("admins", ("admin",))
        await records.create(NewAccount(Username("boss", "boss"), groups=("admins",)), default_group="default")
        for name in ("root", "boss"):
            assert (await bearer(external, issuer.token(sub=name))).json() == not_valid()
            assert (await named(external, name)).json() == _NOT_FOUND

    async def test_linked_subject_is_its_user_in_any_spelling(self, external: Api, issuer: Issuer) -> None:
        await link(external, "admin", "auth0|Admin 7")
        assert (await bearer(external, issuer.token(sub="auth0|Admin 7"))).status_code == 200
        assert (await bearer(external, issuer.token(sub="auth0|admin 7"))).json() == not_valid()
        assert (await bearer(external, issuer.token(sub="admin"))).json() == not_valid()
        assert await _links(external).unlink("admin") == 1
        assert (await bearer(external, issuer.token(sub="auth0|Admin 7"))).json() == not_valid()

    async def test_subject_of_one_issuer_is_not_the_user_of_another(self, external: Api, issuer: Issuer) -> None:
        assert (await named(external, "ana")).status_code == 200
        assert (await bearer(external, issuer.token())).json() == not_valid()
        await link(external, "ana")
        assert (await bearer(external, issuer.token())).status_code == 200
        assert (await named(external, "ana")).status_code == 200

    async def test_user_of_an_older_release_belongs_to_the_first_issuer_that_names_them(
        self, external: Api, issuer: Issuer
    ) -> None:
        records = AccountRepository(external.database)
        await records.create(NewAccount(Username("ana", "ana")), default_group="default")
        both = await asyncio.gather(bearer(external, issuer.token()), named(external, "ana"))
        assert sorted(one.status_code for one in both) == [200, 401]
        (linked,) = await _links(external).all("ana")
        assert not linked.by_administrator

    async def test_only_one_of_several_concurrent_links_is_created(self, external: Api) -> None:
        records = AccountRepository(external.database)
        user_id = await records.create(NewAccount(Username("ana", "ana")), default_group="default")
        identities = [ExternalIdentity(f"issuer {n}", "ana") for n in range(5)]
        made = await asyncio.gather(*(records.link_first(user_id, identity) for identity in identities))
        assert made.count(True) == 1

    async def test_names_that_differ_in_more_than_case_are_different_users(self, external: Api, issuer: Issuer) -> None:
        records = AccountRepository(external.database)
        await records.create(NewAccount(Username("strasse", "strasse")), default_group="default")
        assert (await bearer(external, issuer.token(sub="stra\u00dfe"))).json() == not_valid()
        assert await _links(external).all() == []
        assert (await bearer(external, issuer.token(sub="strasse"))).status_code == 200

    async def test_refused_and_revoked_token_stays_invalid_after_link(self, external: Api, issuer: Issuer) -> None:
        token = issuer.token(sub="admin")
        assert (await bearer(external, token)).json() == not_valid()
        assert (await external.stranger.post("token/revoke", token=token)).json() == {}
        await link(external, "admin")
        assert (await bearer(external, token)).json() == not_valid()
        assert (await bearer(external, issuer.token(sub="admin", jti="new"))).status_code == 200

    async def test_explanation_names_the_missing_link(self, external: Api, issuer: Issuer) -> None:
        async with open_explainer(external.services.settings) as explainer:
            for subject, said in (("admin", "has a password"), ("ADMIN", "not in the normal form admin")):
                *_, finding = await explainer.explain(issuer.token(sub=subject))
                assert (finding.check, finding.passed) == ("user", False)
                assert said in finding.text
                assert "queryserver link-user" in finding.text
            await link(external, "admin")
            assert all(one.passed for one in await explainer.explain(issuer.token(sub="admin")))


class TestDisabledUsers:
    async def test_event_stream_ends(self, quick: Api) -> None:
        ana, boss = await quick.user(), await administrator(quick)
        operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
        await ana.running(operation)
        async with quick.http.stream("GET", f"/api/v1/editor/events/{operation}", headers=boss.headers) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await accounts(quick).disable(boss.username)
            received = [line async for line in lines if line]
        assert received[-2] == "event: denied"
        refusal = {"status": -1, "code": "user_inactive", "message": "User is inactive"}
        assert json.loads(received[-1].removeprefix("data: ")) == refusal
        assert await ana.state(operation) == "running"

    async def test_waiting_call_ends_when_the_user_is_disabled(self, quick: Api) -> None:
        ana, boss = await quick.user(), await administrator(quick)
        operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
        waiting = asyncio.create_task(boss.post("editor/check_status", operationId=operation, wait="60"))
        await ana.running(operation)
        await accounts(quick).disable(boss.username)
        answer = await waiting
        assert (answer.status_code, answer.json()) == (401, _INACTIVE)

    async def test_statements_are_canceled(self, quick: Api) -> None:
        ana, bob = await quick.user(), await quick.user()
        operations = [(await one.execute("mysql", "sleep 600"))["history_uuid"] for one in (ana, bob)]
        await ana.running(operations[0])
        await bob.running(operations[1])
        await accounts(quick).disable(ana.username)
        assert await state_of(quick, operations[0]) == ("canceled", "Canceled because the user is no longer active.")
        assert await bob.state(operations[1]) == "running"

    async def test_wait_with_revoked_token_ends(self, quick: Api) -> None:
        ana = await quick.user()
        operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
        waiting = asyncio.create_task(ana.post("editor/check_status", operationId=operation, wait="60"))
        await ana.running(operation)
        token = ana.headers["Authorization"].removeprefix("Bearer ")
        await quick.stranger.post("token/revoke", token=token)
        assert (await waiting).json() == not_valid()

    async def test_statement_is_canceled_by_the_server_that_runs_it(self, opener: Opener) -> None:
        async with opener(recheck_s=1) as one, opener(recheck_s=1) as other:
            ana = await one.user()
            operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
            await ana.running(operation)
            await accounts(other).disable(ana.username)
            assert (await state_of(other, operation))[0] == "canceled"

    async def test_sessions_are_closed(self, quick: Api) -> None:
        ana = await quick.user()
        body = await ana.post_ok("editor/create_session", session=json.dumps({"type": "mysql"}))
        await accounts(quick).disable(ana.username)
        closed = "select true as closed from sessions where id = $1 and closed_at is not null"
        assert await found(quick, closed, body["session"]["id"])

    async def test_hanging_session_close_delays_no_other_call(self, quick: Api) -> None:
        ana, bob = await quick.user(), await quick.user()
        body = await ana.post_ok("editor/create_session", session=json.dumps({"type": "mysql"}))
        held = quick.services.statements.runner.sessions.get(body["session"]["id"])
        assert held is not None
        close, is_closing, may_close = held.close, asyncio.Event(), asyncio.Event()

        async def close_late() -> None:
            is_closing.set()
            await may_close.wait()
            await close()

        held.close = close_late  # type: ignore[method-assign]
        await accounts(quick).disable(ana.username)
        await is_closing.wait()
        operation = (await bob.execute("mysql", "sleep 600"))["history_uuid"]
        await bob.running(operation)
        await accounts(quick).disable(bob.username)
        assert (await state_of(quick, operation))[0] == "canceled"
        may_close.set()


async def state_of(api: Api, operation: str) -> tuple[str, str]:
    """Wait for a statement's end; return its state and message. They are read from the database, since the user may no
    longer query them.
    """
    ended = "select state, message from statements where id = $1::uuid and state not in ('waiting', 'running')"
    row = await found(api, ended, operation)
    return row["state"], row["message"]


async def found(api: Api, query: str, *values: object) -> Mapping[str, Any]:
    """Wait until a query returns a row; return it."""
    for _ in range(1200):
        if row := await api.database.row(query, *values):
            return row
        await asyncio.sleep(0.05)
    raise AssertionError(query)


class TestDemotedUsers:
    async def test_stream_ends_with_the_right_to_the_connector(self, quick: Api) -> None:
        ana = await quick.user(groups=("analysts",))
        operation = (await ana.execute("closed", "sleep 600"))["history_uuid"]
        await ana.running(operation)
        async with quick.http.stream("GET", f"/api/v1/editor/events/{operation}", headers=ana.headers) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await leave(quick, ana, "analysts")
            received = [line async for line in lines if line]
        assert received[-2] == "event: denied"
        assert json.loads(received[-1].removeprefix("data: "))["code"] == "permission_denied"

    async def test_wait_ends_with_the_right_to_the_connector(self, quick: Api) -> None:
        ana = await quick.user(groups=("analysts",))
        operation = (await ana.execute("closed", "sleep 600"))["history_uuid"]
        waiting = asyncio.create_task(ana.refused("editor/check_status", operationId=operation, wait="60"))
        await ana.running(operation)
        await leave(quick, ana, "analysts")
        assert await waiting == (403, -1, "permission_denied")

    async def test_own_statements_may_still_be_canceled_and_closed(self, quick: Api) -> None:
        ana = await quick.user(groups=("analysts",))
        running = (await ana.execute("closed", "sleep 600"))["history_uuid"]
        await ana.running(running)
        done = (await ana.run("closed", "rows 1"))["history_uuid"]
        await leave(quick, ana, "analysts")
        assert verdict(await ana.post("editor/check_status", operationId=done))[2] == "permission_denied"
        assert (await ana.on(running, "cancel_statement"))["status"] == 0
        assert (await state_of(quick, running))[0] == "canceled"
        assert (await ana.on(done, "close_statement"))["status"] == 0
        assert (await state_of(quick, done))[0] == "closed"

    async def test_sessions_of_a_withdrawn_connector_are_closed_and_reported(self, quick: Api) -> None:
        ana, bob = await quick.user(groups=("analysts",)), await quick.user()
        sessions = [
            (await ana.post_ok("editor/create_session", session=json.dumps({"type": "closed"})))["session"]["id"]
            for _ in range(3)
        ]
        await leave(quick, ana, "analysts")
        body = {"type": "closed", "id": sessions[0]}
        closed = (await ana.post_ok("editor/close_session", session=json.dumps(body)))["session"]
        assert closed["session"] == {"id": sessions[0], "application": "closed", "status": 4}
        every = json.dumps({"type": "closed"})
        closed = (await ana.post_ok("editor/close_session", session=every))["session"]
        assert closed["session"] == {"id": sessions[2], "application": "closed", "status": 4}
        still_open = "select count(*) from sessions where closed_at is null and id = any($1::bigint[])"
        assert await quick.database.value(still_open, sessions) == 0
        again = (await ana.post_ok("editor/close_session", session=every))["session"]
        for name in ("CLOSED", "closed-closed"):
            body = json.dumps({"type": name})
            assert (await ana.post_ok("editor/close_session", session=body))["status"] == 0
            assert (await bob.refused("editor/close_session", session=body))[2] == "dialect_not_found"
        assert (again["message"], again["session"]) == ("Session successfully closed.", None)
        # A user who never had a session on the connector must not learn that it exists.
        assert (await bob.refused("editor/close_session", session=every))[2] == "dialect_not_found"
        assert (await ana.refused("editor/create_session", session=every))[2] == "dialect_not_found"


class TestGuesses:
    @pytest.fixture
    async def behind(self, opener: Opener) -> AsyncIterator[Api]:
        """An application with the user ana, behind a proxy that forwards client addresses."""
        async with opener({"trusted_proxies": ("127.0.0.1",)}) as api:
            await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
            yield api

    async def test_guesses_from_four_addresses_do_not_block_the_known_address(self, behind: Api) -> None:
        assert await attempt(behind, "10.0.0.1", PASSWORD) == 200
        for number in range(2, 6):
            for _ in range(5):
                assert await attempt(behind, f"10.0.0.{number}") == 401
        assert await attempt(behind, "10.0.0.6", PASSWORD) == 429
        for _ in range(3):
            assert await attempt(behind, "10.0.0.1", PASSWORD) == 200
        # Guesses from a known address are counted separately, but with the same limit.
        assert [await attempt(behind, "10.0.0.1") for _ in range(6)] == [401] * 5 + [429]
        assert await attempt(behind, "10.0.0.1", PASSWORD) == 429

    async def test_guesses_from_a_known_address_do_not_count_for_other_addresses(self, behind: Api) -> None:
        assert await attempt(behind, "2001:db8:0:1::1", PASSWORD) == 200
        assert [await attempt(behind, f"2001:db8:0:1::{n}") for n in range(2, 8)] == [401] * 5 + [429]
        assert await attempt(behind, "10.0.0.9", PASSWORD) == 200

    async def test_guess_rate_per_name_is_limited(self, behind: Api) -> None:
        await attempt(behind, "10.0.0.1", PASSWORD)
        every = [await attempt(behind, f"10.0.{1 + n // 5}.1") for n in range(40)]
        assert every == [401] * 20 + [429] * 20

    async def test_known_address_is_valid_for_its_user_for_thirty_days(self, behind: Api) -> None:
        await accounts(behind).create(AuthenticatedUser("bob"), PASSWORD)
        assert await attempt(behind, "10.0.0.1", PASSWORD) == 200
        for number in range(2, 6):
            for name in ("ana", "bob"):
                for _ in range(5):
                    assert await attempt(behind, f"10.0.0.{number}", name=name) == 401
        assert await attempt(behind, "10.0.0.1", PASSWORD, name="bob") == 429
        await behind.database.execute("update login_networks set last_login_at = now() - interval '31 days'")
        assert await attempt(behind, "10.0.0.1", PASSWORD) == 429

    async def test_known_addresses_per_user_are_limited(self, behind: Api) -> None:
        throttle = behind.services.accounts.logins.throttle
        for number in range(30):
            await throttle.succeeded("ana", f"10.1.0.{number}")
        assert await behind.database.value("select count(*) from login_networks") == 20
        # The second user has the same normalized name. Guesses for both users are counted together, but each user has
        # separate known addresses.
        for number in range(20):
            await throttle.succeeded("an\u00e1", f"10.2.0.{number}")
        assert await behind.database.value("select count(*) from login_networks") == 40
        for number in range(2, 6):
            for _ in range(5):
                assert await attempt(behind, f"10.3.0.{number}") == 401
        assert await attempt(behind, "10.2.0.1", PASSWORD) == 429
        assert await attempt(behind, "10.1.0.29", PASSWORD) == 200
        # No address is recorded if the proxy does not forward the client's address.
        await throttle.succeeded("eve", "unknown")
        assert await behind.database.value("select count(*) from login_networks") == 40


async def attempt(api: Api, address: str, password: str = WRONG, *, name: str = "ana") -> int:
    headers = {"X-Forwarded-For": address}
    fields = {"username": name, "password": password}
    return (await api.stranger.send("POST", "token/auth", data=fields, headers=headers)).status_code
