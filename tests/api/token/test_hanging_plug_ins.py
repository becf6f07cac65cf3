"""Classes of others that hang, or do harm to the event loop (Contract platform 4.1, 4.2)."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from tests.api.driving import Api, Caller
from tests.api.token.logins import Opener

from queryserver.identity.plug_ins import PlugInThreads

HERE = "tests.fakes.plug_ins"
THREADS = 8


@pytest.fixture
def with_limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Gives plug-ins of applications that are opened later so many seconds."""

    def limit(limit_s: float) -> None:
        def threads(**options: Any) -> PlugInThreads:
            return PlugInThreads(limit_s=limit_s, **options)

        monkeypatch.setattr("queryserver.identity.build.PlugInThreads", threads)

    return limit


async def call(api: Api, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Caller(api, "", named).get("editor/get_history")


async def test_what_a_class_does_to_the_event_loop_ends_its_call_alone(
    with_limit: Callable[[float], None], opener: Opener
) -> None:
    with_limit(0.1)
    async with opener(api_auth=(f"{HERE}.Stubborn", "jwt")) as api:
        for word in ("exit", "interrupt", "cancel", "stay"):
            with capture_logs():
                response = await call(api, X_Stubborn=word)
            assert (response.status_code, response.json()["code"]) == (500, "internal_error"), word
        assert (await call(api)).status_code == 401


class Held:
    """Both kinds of class: holds up its thread until `opened`, as an authenticator for calls that send `X-Held`."""

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
    """What lets all go that are held; open at the end, so that no thread outlives its test."""
    Held.opened.clear()
    yield Held.opened
    Held.opened.set()


@pytest.mark.usefixtures("opened")
async def test_a_class_that_hangs_is_500_in_its_time(with_limit: Callable[[float], None], opener: Opener) -> None:
    # Enough for the call that does not hang, on a busy machine too.
    with_limit(2)
    async with opener(api_auth=(f"{__name__}.Held", "jwt")) as api:
        with capture_logs():
            answers = await asyncio.gather(*(call(api, X_Held="yes") for _ in range(3)))
        assert {answer.status_code for answer in answers} == {500}
        assert (await call(api)).status_code == 401


async def test_slow_logins_hold_up_no_call_of_others(
    monkeypatch: pytest.MonkeyPatch, with_limit: Callable[[float], None], opener: Opener, opened: threading.Event
) -> None:
    with_limit(60)
    monkeypatch.setattr("queryserver.identity.logins._BACKEND_LIMIT_S", 60)
    free = {f"login_failures_per_{what}": 0 for what in ("address", "user", "user_and_address")}
    names = {"backend": (f"{__name__}.Held",), "api_auth": (f"{HERE}.Sync",)}
    async with opener(**names, **free) as api:
        logins = [
            asyncio.create_task(api.stranger.post("token/auth", username=f"eve{number}", password="x"))
            for number in range(THREADS + 4)
        ]
        for _ in range(THREADS):
            assert await asyncio.to_thread(Held.inside.acquire, timeout=25)
        # A call that waited for the threads of logins would end with them, or as 500.
        assert (await call(api, X_Sync="ana")).status_code == 200
        assert not any(login.done() for login in logins)
        opened.set()
        assert {answer.status_code for answer in await asyncio.gather(*logins)} == {401}
