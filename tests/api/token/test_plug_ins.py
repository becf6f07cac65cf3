"""Plug-in authenticators and login back ends, and their WWW-Authenticate challenges (Contract platform 3.1, 4.1, 4.2;
T19).
"""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any, ClassVar, Self

import httpx
import pytest
from structlog.testing import capture_logs
from tests.api.driving import Api, Caller
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, link, log_in, not_valid, tampered
from tests.fakes.plug_ins import Journal

from queryserver.errors.base import ConfigurationError
from queryserver.identity.model import AuthenticatedUser
from queryserver.identity.repository import AccountRepository
from queryserver.identity.threads import LimitedThreads

HERE = "tests.fakes.plug_ins"


@pytest.fixture(autouse=True)
def journal() -> Iterator[type[Journal]]:
    Journal.clear()
    yield Journal
    Journal.clear()


@pytest.fixture
async def chain(opener: Opener) -> AsyncIterator[Api]:
    names = (f"{HERE}.Sync", f"{HERE}:Async", f"{HERE}.GroupedUserAuth", f"{HERE}.MisbehavingAuth", "jwt")
    async with opener(api_auth=names) as api:
        yield api
    assert sorted(Journal.closed) == ["Async", "Sync"]


async def call(api: Api, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Caller(api, "", named).get("editor/get_history")


@pytest.mark.platform(47)
async def test_authenticators_are_called_in_order_until_one_knows_the_caller(
    chain: Api, journal: type[Journal]
) -> None:
    assert (await call(chain, X_Sync="ana", X_Async="bob")).status_code == 200
    assert journal.asked == ["Sync"]
    assert (await call(chain, X_Async="bob", X_Misbehaving="fail")).status_code == 200
    assert journal.asked == ["Sync", "Sync", "Async"]
    everybody = await accounts(chain).all()
    seen = [(one.username, one.email, one.groups, one.is_admin, one.has_password) for one in everybody]
    assert seen == [("ana", "", ("default",), False, False), ("bob", "a@b.example", ("default",), False, False)]


@pytest.mark.platform(47)
async def test_own_tokens_work_after_classes_that_do_not_know_the_caller(chain: Api, journal: type[Journal]) -> None:
    await accounts(chain).create(AuthenticatedUser("ana"), PASSWORD)
    assert (await bearer(chain, (await log_in(chain))["access"])).status_code == 200
    assert journal.asked == ["Sync", "Async", "Grouped", "Misbehaving"]
    assert {name.partition("_")[0] for name in (journal.threads[0], journal.threads[3])} == {"plug-in"}
    assert journal.threads[1] == "MainThread"


@pytest.mark.platform(47)
async def test_class_is_instantiated_once_with_the_settings(chain: Api, journal: type[Journal]) -> None:
    for _ in range(3):
        await call(chain, X_Async="bob")
    assert journal.built == [chain.services.settings]


async def test_request_exposes_everything_but_the_body(chain: Api, journal: type[Journal]) -> None:
    caller = Caller(chain, "", {"X-Sync": "ana", "X-Twice": "1"})
    await caller.send("GET", "editor/get_history", params={"limit": "5"}, headers={"x-TWICE": "2"})
    request = journal.requests[0]
    assert (request.method, request.url) == ("GET", "http://test/api/v1/editor/get_history?limit=5")
    assert (request.headers.get("x-sync"), request.headers.getlist("X-twice")) == ("ana", ["1", "2"])
    assert (request.client, request.is_from_trusted_proxy) == ("127.0.0.1", False)
    assert not {"body", "stream", "json", "form", "receive"} & {name.strip("_") for name in dir(request)}


async def test_request_exposes_method_and_url_as_received(opener: Opener, journal: type[Journal]) -> None:
    sent = [
        ("HEAD", "/sql/api/v1/editor/get_history"),
        ("GET", "/sql/api/v1/editor/get_history/?limit=5&x=%2F"),
        ("GET", "/sql/api/v1/editor/%67et_history/"),
    ]
    async with opener({"url_prefix": "/sql"}, api_auth=(f"{HERE}.Sync",)) as api:
        for method, path in sent:
            assert (await api.http.request(method, path, headers={"X-Sync": "ana"})).status_code == 200
    assert [(one.method, one.url) for one in journal.requests] == [(way, f"http://test{path}") for way, path in sent]


@pytest.mark.platform(47)
async def test_refusal_returns_401_without_trying_further_classes(chain: Api) -> None:
    await accounts(chain).create(AuthenticatedUser("ana"), PASSWORD)
    token = (await log_in(chain))["access"]
    bodies = {"refuse": {"detail": "Not you."}, "refuse with code": {"detail": "Not you.", "code": "not_you"}}
    for word, body in bodies.items():
        response = await call(chain, X_Misbehaving=word, Authorization=f"Bearer {token}")
        assert (response.status_code, response.json()) == (401, body)
        assert response.headers.get_list("www-authenticate") == ['Bearer realm="api"']


UNKEEPABLE = ("groups as number", "groups once", "half a character")


@pytest.mark.platform(47)
async def test_other_failures_return_500_without_trying_further_classes(chain: Api) -> None:
    await accounts(chain).create(AuthenticatedUser("ana"), PASSWORD)
    token = (await log_in(chain))["access"]
    for word in ("fail", "time out", "stop", "exit", "text", "nameless", "triple", "group as text", *UNKEEPABLE):
        with capture_logs() as lines:
            response = await call(chain, X_Misbehaving=word, Authorization=f"Bearer {token}")
        assert (response.status_code, response.json()["code"]) == (500, "internal_error"), word
        assert "planted" not in response.text
        assert [line["error_id"] for line in lines if line.get("exc_info")] == [response.json()["error_id"]]


async def test_method_returning_a_coroutine_is_awaited(chain: Api) -> None:
    assert (await call(chain, X_Misbehaving="later")).status_code == 200


async def test_invalid_names_and_disabled_users_return_401(chain: Api) -> None:
    refused = await call(chain, X_Misbehaving="no legal name")
    assert (refused.status_code, refused.json()["code"]) == (401, "user_not_found")
    await accounts(chain).create(AuthenticatedUser("ana"), PASSWORD)
    await accounts(chain).disable("ana")
    assert (await call(chain, X_Sync="ana")).json() == {"detail": "User not found", "code": "user_not_found"}
    await link(chain, "ana", issuer=f"{HERE}.Sync")
    assert (await call(chain, X_Sync="ana")).json() == {"detail": "User is inactive", "code": "user_inactive"}


@pytest.mark.platform(47)
async def test_unknown_caller_gets_the_challenges_of_all_authenticators(chain: Api) -> None:
    response = await call(chain, X_Challenge="Async")
    assert response.json() == {"detail": "Authentication credentials were not provided."}
    challenges = ['Bearer realm="api"', 'Sync realm="GET"', "Async"]
    assert response.headers.get_list("www-authenticate") == challenges
    assert (await call(chain, Authorization="Basic YTpi")).json()["detail"].endswith("not provided.")
    assert (await call(chain, Authorization="Bearer opaque")).json() == not_valid()
    split = await chain.http.get("/api/v1/editor/get_history", headers=[(b"X-Challenge", "é\x07".encode("latin-1"))])
    assert split.headers.get_list("www-authenticate") == challenges[:2]


@pytest.mark.platform(47)
async def test_bad_token_gets_the_challenges_of_all_authenticators(opener: Opener) -> None:
    # The plug-in class is last in the list, so the token is rejected before the class is called.
    async with opener(api_auth=("jwt", f"{HERE}.Sync")) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        pair = await log_in(api)
        challenges = ['Bearer realm="api"', 'Sync realm="GET"']
        for value in (f"Bearer {tampered(pair['access'])}", f"Bearer {pair['refresh']}", "Bearer", "Bearer a b"):
            refused = await call(api, Authorization=value)
            assert (refused.status_code, refused.headers.get_list("www-authenticate")) == (401, challenges), value
        await accounts(api).disable("ana")
        inactive = await bearer(api, pair["access"])
        assert (inactive.json()["code"], inactive.headers.get_list("www-authenticate")) == ("user_inactive", challenges)


async def test_named_groups_and_the_default_group_apply(chain: Api) -> None:
    records = AccountRepository(chain.database)
    await records.ensure_group("analysts", ("download",))
    await records.ensure_group("writers", ())
    await records.ensure_group("admins", ("admin",))

    async def groups(named: str | None) -> tuple[str, ...]:
        headers = {"X_Grouped": "ana"} | ({"X_Groups": named} if named else {})
        assert (await call(chain, **headers)).status_code == 200
        return next(one.groups for one in await accounts(chain).all() if one.username == "ana")

    assert await groups("analysts,unknown") == ("analysts", "default")
    assert await groups("analysts,unknown") == ("analysts", "default")
    assert await groups(None) == ("analysts", "default")
    assert await groups("writers,admins") == ("default", "writers")
    assert await groups("default") == ("default",)
    answers = await asyncio.gather(*(call(chain, X_Grouped="ana", X_Groups=name) for name in ("analysts", "writers")))
    assert {answer.status_code for answer in answers} == {200}
    await chain.database.execute(
        "insert into group_members select u.id, g.id from users u, groups g where g.name = 'admins'"
    )
    assert await groups("analysts") == ("admins", "analysts", "default"), "nor is an administrator unmade"


async def test_named_groups_already_apply_to_the_current_call(chain: Api) -> None:
    await AccountRepository(chain.database).ensure_group("analysts", ())
    caller = Caller(chain, "", {"X-Grouped": "ana", "X-Groups": "analysts"})
    assert (await caller.execute("closed", "select 1"))["status"] == 0


UNLOADABLE = {
    "nobody": "valid are",
    "no_such_package.Class": "ModuleNotFoundError",
    f"{HERE}.NoSuchClass": "AttributeError",
    f"{HERE}:NoMethod": "it has no method",
    f"{HERE}.Unbuildable": "RuntimeError: not today",
    f"{HERE}:": "AttributeError",
    ".": "ValueError",
}


@pytest.mark.platform(47)
@pytest.mark.parametrize("key", ["api_auth", "backend"])
async def test_unloadable_names_prevent_startup_and_are_all_reported(opener: Opener, key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await opener(**{key: tuple(UNLOADABLE)}).__aenter__()
    for problem, (name, reason) in zip(refused.value.problems, UNLOADABLE.items(), strict=True):
        assert problem.startswith(f"desktop.auth.{key}: {name} cannot be loaded: ")
        assert reason in problem


async def test_plug_in_login_backends_create_users(opener: Opener, journal: type[Journal]) -> None:
    async with opener(backend=("local", f"{HERE}.BlockingDoor", f"{HERE}:Door")) as api:
        await AccountRepository(api.database).ensure_group("analysts", ())
        pair = await log_in(api, "Ana", "let me in")
        assert (await bearer(api, pair["access"])).status_code == 200
        (account,) = await accounts(api).all()
        assert (account.username, account.first_name, account.groups) == ("ana", "Ann", ("analysts", "default"))
        assert journal.asked == ["Door ana 127.0.0.1"]
        assert journal.threads[0].startswith("plug-in")
        assert await log_in(api, "bob", "let me in too")
        await accounts(api).disable("ana")
        refused = await api.stranger.post("token/auth", username="ana", password="let me in")
        assert (refused.status_code, refused.json()) == (401, NO_ACCOUNT)


@pytest.mark.platform(36)
async def test_plug_in_backend_is_called_only_for_legal_names(opener: Opener, journal: type[Journal]) -> None:
    async with opener(backend=(f"{HERE}.Door",)) as api:
        for name in ("a b", "..", "ana\r\nroot"):
            refused = await api.stranger.post("token/auth", username=name, password="let me in")
            assert (refused.status_code, refused.json()) == (401, NO_ACCOUNT)
        assert journal.asked == []
        await log_in(api, "  ANA ", "let me in")
        assert journal.asked == ["Door ana 127.0.0.1"]


NO_ACCOUNT = {"detail": "No active account found with the given credentials"}


@pytest.mark.security("T15")
async def test_backend_that_ends_the_login_reveals_nothing(opener: Opener) -> None:
    async with opener(backend=(f"{HERE}.Door", "local")) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        for password in ("stop", "wrong"):
            refused = await api.stranger.post("token/auth", username="ana", password=password)
            assert (refused.status_code, refused.json()) == (401, NO_ACCOUNT)
        assert await log_in(api, "ana", PASSWORD)


async def test_failing_backend_counts_as_unavailable(opener: Opener) -> None:
    async with opener(backend=(f"{HERE}.Door", "local")) as api:
        for password in ("fail", "text", "number", "half a character"):
            with capture_logs() as lines:
                answer = await api.stranger.post("token/auth", username="ana", password=password)
            assert lines[0]["backend"] == f"{HERE}.Door"
            assert (answer.status_code, answer.json()["code"]) == (503, "login_backend_unavailable"), password
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        assert await log_in(api)


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The Python examples in docs/authentication.md, which can be imported as modules."""
    text = (Path(__file__).parents[3] / "docs" / "authentication.md").read_text()
    examples = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in examples] == ["acme_auth", "acme_login"]
    for name, code in examples:
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ACME_API_KEYS", "nightly:k-1,hourly:k-2")
    yield text
    for name, _ in examples:
        sys.modules.pop(name, None)


@pytest.mark.platform(47)
@pytest.mark.security("T19")
async def test_documented_authenticators_work(opener: Opener, documented: str) -> None:
    found = re.search(r"^api_auth = \[(.*)\]$", documented, re.MULTILINE)
    assert found
    names = tuple(re.findall(r'"([^"]+)"', found[1]))
    assert len(names) == 3
    async with opener({"trusted_proxies": (ip_network("127.0.0.1"),)}, api_auth=names) as behind:
        await AccountRepository(behind.database).ensure_group("analysts", ())
        assert (await call(behind, X_Remote_User="ana", X_Remote_Groups="analysts, x")).status_code == 200
        twice = [("X-Remote-User", "ana"), ("X-Remote-User", "root")]
        ambiguous = await behind.http.get("/api/v1/editor/get_history", headers=twice)
        assert (ambiguous.status_code, ambiguous.json()["code"]) == (401, "ambiguous_user")
        assert (await call(behind, X_Api_Key="k-2")).status_code == 200
        unknown = await call(behind, X_Api_Key="k-3")
        assert unknown.json() == {"detail": "This key is not known.", "code": "unknown_api_key"}
        assert (await call(behind)).headers.get_list("www-authenticate")[1] == 'ApiKey realm="api"'
        everybody = await accounts(behind).all()
        seen = [(one.username, one.groups) for one in everybody]
        assert seen == [("ana", ("analysts", "default")), ("hourly", ("default",))]
    async with opener({"trusted_proxies": (ip_network("192.0.2.0/24"),)}, api_auth=names) as direct:
        forged = await call(direct, X_Remote_User="ana", X_Forwarded_For="192.0.2.1", Forwarded="for=192.0.2.1")
        assert (forged.status_code, forged.json()["detail"]) == (401, "Authentication credentials were not provided.")


async def test_documented_login_backend_works(opener: Opener, documented: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import imaplib

    class Mail:
        """Replaces an IMAP connection. It has the methods that the example uses."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def login(self, username: str, password: str) -> None:
            if password != "mail password":
                raise imaplib.IMAP4.error(username)

    assert "acme_login" in documented
    async with opener(backend=("acme_login.MailServer",)) as api:
        monkeypatch.setattr("acme_login.MailServer.connect", lambda _: Mail())
        assert await log_in(api, "ana", "mail password")
        refused = await api.stranger.post("token/auth", username="ana", password="x")
        assert refused.json() == NO_ACCOUNT
        assert [one.email for one in await accounts(api).all()] == ["ana@acme.example"]


def test_public_names_are_cheap_to_import() -> None:
    heavy = ("fastapi", "asyncpg", "jose", "cryptography", "pydantic", "httpx")
    program = (
        "import sys; from queryserver.auth import AuthenticatedUser, AuthenticationFailed;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.security("T15")
async def test_password_guesses_are_limited_during_a_backend_outage(opener: Opener) -> None:
    async with opener(backend=("local", f"{HERE}.Door")) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        statuses = [
            (await api.stranger.post("token/auth", username="ana", password="fail")).status_code for _ in range(7)
        ]
        assert statuses[0] == 503
        assert statuses[-1] == 429


OURS, SYNC = 'Bearer realm="api"', 'Sync realm="GET"'
SYNC_CLASS = "tests.fakes.plug_ins.Sync"


class HeaderAuthenticator:
    """Authenticates the user whom the header `X-Known` names."""

    async def authenticate(self, request: Any) -> Any:
        from queryserver.identity.model import AuthenticatedUser

        name = request.headers.get("X-Known")
        return AuthenticatedUser(name) if name else None


class Broken(HeaderAuthenticator):
    def authenticate_header(self, request: Any) -> str:
        raise RAISED[request.headers.get("X-Raise", "bug")]


RAISED: dict[str, BaseException] = {
    "bug": ValueError("planted-secret"),
    "missing": AttributeError("planted-secret"),
    "time out": TimeoutError("planted-secret"),
    "stop": StopIteration("planted-secret"),
    "exit": SystemExit(1),
}


class BrokenAsync(HeaderAuthenticator):
    async def authenticate_header(self, request: Any) -> str:
        raise KeyError(request.headers.get("X-Raise"))


class BlockingAuthenticator(HeaderAuthenticator):
    """An authenticator whose challenge blocks its thread until `opened` is set."""

    opened = threading.Event()
    inside: ClassVar[list[str]] = []

    def authenticate_header(self, request: Any) -> str:
        del request
        self.inside.append(type(self).__name__)
        self.opened.wait()
        return "BlockingAuthenticator"


class SecondBlockingAuthenticator(BlockingAuthenticator):
    pass


class AsyncBlockingAuthenticator(HeaderAuthenticator):
    async def authenticate_header(self, request: Any) -> str:
        del request
        await asyncio.sleep(3600)
        return "AsyncBlockingAuthenticator"


@pytest.fixture
def closed_gate() -> Iterator[None]:
    BlockingAuthenticator.opened.clear()
    BlockingAuthenticator.inside.clear()
    yield
    BlockingAuthenticator.opened.set()


def named(*classes: type[HeaderAuthenticator]) -> tuple[str, ...]:
    return tuple(f"{__name__}.{one.__name__}" for one in classes)


async def refused(api: Api, token: str, **headers: str) -> list[str]:
    """Make a call with an invalid token; return the challenges in the 401 response."""
    sent = {"Authorization": f"Bearer {token}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = await Caller(api, "", sent).get("editor/get_history")
    assert (response.status_code, response.json()) == (401, not_valid()), headers
    assert "planted" not in response.text
    return response.headers.get_list("www-authenticate")


@pytest.mark.platform(21, 47)
async def test_failing_challenge_is_omitted_from_the_401(opener: Opener) -> None:
    async with opener(api_auth=("jwt", *named(Broken, BrokenAsync), SYNC_CLASS)) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        token = (await log_in(api))["access"]
        for word in RAISED:
            with capture_logs() as lines:
                assert await refused(api, tampered(token), X_Raise=word) == [OURS, SYNC], word
            left_out = [line for line in lines if line["event"] == "challenge omitted"]
            assert {line["authenticator"] for line in left_out} == set(named(Broken, BrokenAsync))
            assert "KeyError" in {line["error"] for line in left_out}
            assert "planted" not in str(left_out)
            assert not any(line.get("exc_info") for line in left_out)
        assert (await bearer(api, token)).status_code == 200


@pytest.mark.usefixtures("closed_gate")
@pytest.mark.platform(21, 47)
async def test_hanging_challenges_are_omitted_and_do_not_delay_calls(opener, monkeypatch):
    # Challenges that do not hang take less time than this limit, even on a busy machine.
    monkeypatch.setattr("queryserver.identity.build._CHALLENGE_LIMIT_S", 4.0)
    names = named(BlockingAuthenticator, AsyncBlockingAuthenticator, SecondBlockingAuthenticator)
    async with opener(api_auth=("jwt", *names, SYNC_CLASS)) as api:
        with capture_logs() as lines:
            began = asyncio.get_running_loop().time()
            every = await asyncio.gather(*(refused(api, f"opaque{number}") for number in range(12)))
            took_s = asyncio.get_running_loop().time() - began
        assert every == [[OURS, SYNC]] * 12
        assert took_s < 3 * 4.0, "challenges are requested in parallel"
        left_out = [(line["authenticator"], line["error"]) for line in lines if line["event"] == "challenge omitted"]
        assert sorted(left_out) == sorted([(name, "TimeoutError") for name in names] * 12)
        # Each class occupies at most two threads. All other threads remain available for calls.
        assert (
            sorted(BlockingAuthenticator.inside) == ["BlockingAuthenticator"] * 2 + ["SecondBlockingAuthenticator"] * 2
        )
        known = await Caller(api, "", {"X-Sync": "ana"}).get("editor/get_history")
        assert known.status_code == 200


THREADS = 8


@pytest.fixture
def with_limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets the timeout in seconds of plug-in calls. It applies to applications that are opened
    afterward.
    """

    def limit(limit_s: float) -> None:
        def threads(**options: Any) -> LimitedThreads:
            return LimitedThreads(**{"limit_s": limit_s, **options})

        monkeypatch.setattr("queryserver.identity.build.LimitedThreads", threads)

    return limit


async def test_class_misusing_the_event_loop_fails_only_its_own_call(with_limit, opener):
    with_limit(0.1)
    async with opener(api_auth=(f"{HERE}.Stubborn", "jwt")) as api:
        for word in ("exit", "interrupt", "cancel", "stay"):
            with capture_logs():
                response = await call(api, X_Stubborn=word)
            assert (response.status_code, response.json()["code"]) == (500, "internal_error"), word
        assert (await call(api)).status_code == 401


class BlockingLogin:
    """A login back end, and an authenticator for calls with the header `X-Held`. Both block their thread until `opened`
    is set.
    """

    opened = threading.Event()
    inside = threading.Semaphore(0)

    def authenticate(self, request: Any) -> None:
        if request.headers.get("X-Held"):
            self.opened.wait()

    def login(self, username: str, password: str, request: object) -> None:
        del username, password, request
        self.inside.release()
        self.opened.wait()


@pytest.fixture
def opened() -> Iterator[threading.Event]:
    """The event that releases all blocked threads. It is set after the test, so that no thread outlives the test."""
    BlockingLogin.opened.clear()
    yield BlockingLogin.opened
    BlockingLogin.opened.set()


@pytest.mark.usefixtures("opened")
async def test_hanging_class_returns_500_within_the_limit(with_limit: Callable[[float], None], opener: Opener) -> None:
    # A call that does not hang takes less time than this limit, even on a busy machine.
    with_limit(2)
    async with opener(api_auth=(f"{__name__}.BlockingLogin", "jwt")) as api:
        with capture_logs():
            answers = await asyncio.gather(*(call(api, X_Held="yes") for _ in range(3)))
        assert {answer.status_code for answer in answers} == {500}
        assert (await call(api)).status_code == 401


async def test_slow_logins_do_not_block_other_calls(monkeypatch, with_limit, opener, opened):
    with_limit(60)
    monkeypatch.setattr("queryserver.identity.logins._BACKEND_LIMIT_S", 60)
    free = {f"login_failures_per_{what}": 0 for what in ("address", "user", "user_and_address")}
    names = {"backend": (f"{__name__}.BlockingLogin",), "api_auth": (f"{HERE}.Sync",)}
    async with opener(**names, **free) as api:
        logins = [
            asyncio.create_task(api.stranger.post("token/auth", username=f"eve{number}", password="x"))
            for number in range(THREADS + 4)
        ]
        for _ in range(THREADS):
            assert await asyncio.to_thread(BlockingLogin.inside.acquire, timeout=25)
        # If this call waited for the threads of the logins, it would end together with them or return 500.
        assert (await call(api, X_Sync="ana")).status_code == 200
        assert not any(login.done() for login in logins)
        opened.set()
        assert {answer.status_code for answer in await asyncio.gather(*logins)} == {401}
