"""Correct and faulty authenticators and login back ends, as third parties might write them."""

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any, ClassVar

from queryserver.errors.base import AuthenticationFailed
from queryserver.identity.model import AuthenticatedUser
from queryserver.platform.settings.tree import Settings


class Journal:
    """Records the calls to the classes of this module, in order. Tests clear it before use."""

    asked: ClassVar[list[str]] = []
    threads: ClassVar[list[str]] = []
    requests: ClassVar[list[Any]] = []
    built: ClassVar[list[object]] = []
    closed: ClassVar[list[str]] = []

    @classmethod
    def clear(cls) -> None:
        for kept in (cls.asked, cls.threads, cls.requests, cls.built, cls.closed):
            kept.clear()


def wanted(request: Any, name: str) -> str | None:
    """Record the call, and return the value of the request header for the authenticator `name`."""
    Journal.asked.append(name)
    Journal.requests.append(request)
    Journal.threads.append(threading.current_thread().name)
    return request.headers.get(f"X-{name}")


class Sync:
    """A synchronous authenticator, which accepts the username in the header `X-Sync`."""

    def authenticate(self, request: Any) -> AuthenticatedUser | None:
        name = wanted(request, "Sync")
        return AuthenticatedUser(name) if name else None

    def authenticate_header(self, request: Any) -> str:
        return f'Sync realm="{request.method}"'

    def close(self) -> None:
        Journal.closed.append("Sync")


class Async:
    """An asynchronous authenticator, which accepts the username in the header `X-Async` and returns a tuple."""

    def __init__(self, settings: Settings) -> None:
        Journal.built.append(settings)

    async def authenticate(self, request: Any) -> tuple[AuthenticatedUser, object] | None:
        name = wanted(request, "Async")
        return (AuthenticatedUser(name, email="a@b.example"), object()) if name else None

    async def authenticate_header(self, request: Any) -> str | None:
        return request.headers.get("X-Challenge")

    async def close(self) -> None:
        Journal.closed.append("Async")


class GroupedUserAuth:
    """An authenticator that accepts the username in the header `X-Grouped` and the groups in `X-Groups`."""

    async def authenticate(self, request: Any) -> AuthenticatedUser | None:
        name = wanted(request, "Grouped")
        groups = request.headers.get("X-Groups")
        return AuthenticatedUser(name, groups=groups.split(",") if groups else None) if name else None


RAISED: dict[str | None, BaseException] = {
    "refuse": AuthenticationFailed("Not you."),
    "refuse with code": AuthenticationFailed("Not you.", code="not_you"),
    "fail": ValueError("planted-secret in /tmp/x"),
    "time out": TimeoutError(),
    "stop": StopIteration(),
    "exit": SystemExit(1),
}

GIVEN: dict[str, object] = {
    "text": "ana",
    "nameless": AuthenticatedUser(None),  # type: ignore[arg-type]
    "triple": (AuthenticatedUser("ana"), 1, 2),
    "group as text": AuthenticatedUser("ana", groups="admins"),
    "no legal name": AuthenticatedUser("a b"),
    "groups as number": AuthenticatedUser("ana", groups=5),  # type: ignore[arg-type]
    "groups once": AuthenticatedUser("ana", groups=(name for name in ("default",))),  # type: ignore[arg-type]
    "half a character": AuthenticatedUser("ana", first_name="\ud800"),
}


class MisbehavingAuth:
    """An authenticator that raises the error or returns the invalid value selected by the header `X-Misbehaving`."""

    def authenticate(self, request: Any) -> Any:
        word = wanted(request, "Misbehaving")
        if word in RAISED:
            raise RAISED[word]
        return self._later() if word == "later" else GIVEN.get(word or "")

    async def _later(self) -> AuthenticatedUser:
        await asyncio.sleep(0)
        return AuthenticatedUser("later")


class Stubborn:
    """An authenticator that exits, interrupts, cancels or ignores cancellation, as the header `X-Stubborn` selects."""

    async def authenticate(self, request: Any) -> AuthenticatedUser | None:
        match wanted(request, "Stubborn"):
            case "exit":
                raise SystemExit(1)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError
            case "stay":
                for _ in range(20):
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.1)
        return None


class Slow:
    """An authenticator that blocks its thread for a second, which is longer than its callers wait."""

    def authenticate(self, request: Any) -> None:
        if wanted(request, "Slow"):
            time.sleep(1)


class NoMethod:
    """An authenticator that lacks the required method."""


class Unbuildable:
    def __init__(self) -> None:
        raise RuntimeError("not today")


class Door:
    """A login back end whose outcome depends on the password."""

    async def login(self, username: str, password: str, request: Any) -> AuthenticatedUser | None:
        Journal.asked.append(f"Door {username} {request.client}")
        match password:
            case "let me in":
                return AuthenticatedUser(username, first_name="Ann", groups=("analysts", "unknown"))
            case "stop":
                raise AuthenticationFailed("told to nobody", code="told_to_nobody")
            case "fail":
                raise OSError("planted-secret")
            case "hang":
                await asyncio.sleep(60)
            case "text":
                return username  # type: ignore[return-value]
            case "number":
                return AuthenticatedUser(5)  # type: ignore[arg-type]
            case "half a character":
                return AuthenticatedUser(username, email="\ud800")
        return None


class BlockingDoor:
    """A login back end whose `login` is synchronous."""

    def login(self, username: str, password: str, request: Any) -> AuthenticatedUser | None:
        Journal.threads.append(threading.current_thread().name)
        del request
        return AuthenticatedUser(username) if password == "let me in too" else None
