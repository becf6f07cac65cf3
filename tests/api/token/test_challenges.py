"""What plug-ins add to a 401, and what they cannot make of it (Contract platform 3.1, 4.2)."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs
from tests.api.driving import Api, Caller
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, log_in, not_valid, tampered

OURS, SYNC = 'Bearer realm="api"', 'Sync realm="GET"'
SYNC_CLASS = "tests.fakes.plug_ins.Sync"


class Knowing:
    """Knows whom `X-Known` names."""

    async def authenticate(self, request: Any) -> Any:
        from queryserver.identity.model import AuthenticatedUser

        name = request.headers.get("X-Known")
        return AuthenticatedUser(name) if name else None


class Broken(Knowing):
    def authenticate_header(self, request: Any) -> str:
        raise RAISED[request.headers.get("X-Raise", "bug")]


RAISED: dict[str, BaseException] = {
    "bug": ValueError("planted-secret"),
    "missing": AttributeError("planted-secret"),
    "time out": TimeoutError("planted-secret"),
    "stop": StopIteration("planted-secret"),
    "exit": SystemExit(1),
}


class BrokenAsync(Knowing):
    async def authenticate_header(self, request: Any) -> str:
        raise KeyError(request.headers.get("X-Raise"))


class Hanging(Knowing):
    """Holds up its thread until `opened`."""

    opened = threading.Event()
    inside: ClassVar[list[str]] = []

    def authenticate_header(self, request: Any) -> str:
        del request
        self.inside.append(type(self).__name__)
        self.opened.wait()
        return "Hanging"


class HangingToo(Hanging):
    pass


class HangingAsync(Knowing):
    async def authenticate_header(self, request: Any) -> str:
        del request
        await asyncio.sleep(3600)
        return "HangingAsync"


@pytest.fixture
def closed_gate() -> Iterator[None]:
    Hanging.opened.clear()
    Hanging.inside.clear()
    yield
    Hanging.opened.set()


def named(*classes: type[Knowing]) -> tuple[str, ...]:
    return tuple(f"{__name__}.{one.__name__}" for one in classes)


async def refused(api: Api, token: str, **headers: str) -> list[str]:
    """The challenges of the 401 that a bad token gets."""
    told = {"Authorization": f"Bearer {token}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = await Caller(api, "", told).get("editor/get_history")
    assert (response.status_code, response.json()) == (401, not_valid()), headers
    assert "planted" not in response.text
    return response.headers.get_list("www-authenticate")


@pytest.mark.platform(21, 47)
async def test_a_challenge_that_fails_is_left_out_of_the_401(opener: Opener) -> None:
    async with opener(api_auth=("jwt", *named(Broken, BrokenAsync), SYNC_CLASS)) as api:
        await accounts(api).create("ana", PASSWORD)
        token = (await log_in(api))["access"]
        for word in RAISED:
            with capture_logs() as lines:
                assert await refused(api, tampered(token), X_Raise=word) == [OURS, SYNC], word
            left_out = [line for line in lines if line["event"] == "challenge left out"]
            assert {line["authenticator"] for line in left_out} == set(named(Broken, BrokenAsync))
            assert "KeyError" in {line["error"] for line in left_out}
            assert "planted" not in str(left_out)
            assert not any(line.get("exc_info") for line in left_out)
        assert (await bearer(api, token)).status_code == 200


@pytest.mark.usefixtures("closed_gate")
@pytest.mark.platform(21, 47)
async def test_challenges_that_hang_are_left_out_and_hold_up_neither_each_other_nor_calls(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for those that do not hang, on a busy machine too.
    monkeypatch.setattr("queryserver.identity.plug_ins._CHALLENGE_LIMIT_S", 4.0)
    names = named(Hanging, HangingAsync, HangingToo)
    async with opener(api_auth=("jwt", *names, SYNC_CLASS)) as api:
        with capture_logs() as lines:
            began = asyncio.get_running_loop().time()
            every = await asyncio.gather(*(refused(api, f"opaque{number}") for number in range(12)))
            took_s = asyncio.get_running_loop().time() - began
        assert every == [[OURS, SYNC]] * 12
        assert took_s < 3 * 4.0, "they are asked at the same time"
        left_out = [(line["authenticator"], line["error"]) for line in lines if line["event"] == "challenge left out"]
        assert sorted(left_out) == sorted([(name, "TimeoutError") for name in names] * 12)
        # Two of each class: the other threads are for calls.
        assert sorted(Hanging.inside) == ["Hanging"] * 2 + ["HangingToo"] * 2
        known = await Caller(api, "", {"X-Sync": "ana"}).get("editor/get_history")
        assert known.status_code == 200
