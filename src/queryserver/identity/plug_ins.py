"""Plug-ins for logins and calls: loading and calling classes of the administrator (Contract platform 4.1, 4.2)."""

import asyncio
import importlib
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from typing import TypeAlias, cast

import structlog

from queryserver import errors
from queryserver.identity.model import (
    AuthenticatedUser,
    AuthRequest,
    ExternalIdentity,
    RequestInfo,
    User,
    UsernameRule,
    plug_in_issuer,
)
from queryserver.identity.provisioning import Provisioning
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_THREADS = 8
_LIMIT_S = 10.0

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)

_Outcome: TypeAlias = tuple[object, BaseException | None]


def is_import_path(name: str) -> bool:
    """Whether a name of the settings is the class of a plug-in; built-in names have neither dot nor colon."""
    return "." in name or ":" in name


def is_well_formed(person: AuthenticatedUser) -> bool:
    """Whether the result of a plug-in is texts that can be stored: no type checker has seen its code."""
    texts: list[object] = [person.username, person.first_name, person.last_name, person.email]
    groups: object = person.groups
    if isinstance(groups, Collection) and not isinstance(groups, str | bytes | Mapping):
        texts += groups
    elif groups is not None:
        return False
    # UTF-8 has no halves of surrogate pairs, PostgreSQL no NUL.
    return all(
        isinstance(text, str) and "\0" not in text and text == text.encode("utf-8", "replace").decode()
        for text in texts
    )


class TooManyWaiting(Exception):
    """So many calls wait for a thread that another one would time out."""


class Places:
    """How many calls of one kind may be in threads at once; others wait.

    A call that was given up keeps its place until its thread has ended.
    """

    def __init__(self, at_once: int, *, most_waiting: int | None = None) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._waiting = 0
        self._most_waiting = most_waiting

    async def take(self) -> None:
        """Wait for a place. Raises TooManyWaiting."""
        if self._free.locked() and self._most_waiting is not None and self._waiting >= self._most_waiting:
            raise TooManyWaiting
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        self._free.release()


class PlugInThreads:
    """Threads for the blocking functions of plug-ins: 8, and 10 s for each call, its wait included.

    With `most_waiting`, a call that finds so many waiting raises TooManyWaiting at once.
    """

    def __init__(self, *, limit_s: float = _LIMIT_S, most_waiting: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="plug-in")
        # Calls wait here and not in the pool, which keeps a call that was given up, and its password, to its turn.
        self._places = Places(_THREADS, most_waiting=most_waiting)
        self._limit_s = limit_s
        self._running: set[asyncio.Task[_Outcome]] = set()

    async def call(
        self,
        function: Callable[..., object],
        *arguments: object,
        limit_s: float = math.inf,
        share: Places | None = None,
    ) -> object:
        """The result of a function, be it async or not. Raises its Exceptions, TimeoutError, TooManyWaiting.

        `limit_s` shortens its time, `share` is the part of the threads that calls of its kind may fill.
        In a task of its own: it may raise what would end this server, or ignore its cancellation.
        """
        running = asyncio.create_task(self._outcome(function, arguments, share), name="plug-in")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            done, _ = await asyncio.wait([running], timeout=min(limit_s, self._limit_s))
        finally:
            running.cancel()
        if not done:
            raise TimeoutError
        given, error = running.result()
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise error
        if error is not None:
            raise RuntimeError(f"{type(error).__name__} in a plug-in") from error
        return given

    def close(self) -> None:
        """Without waiting for calls under way: their callers have gone."""
        for running in self._running:
            running.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _outcome(
        self, function: Callable[..., object], arguments: tuple[object, ...], share: Places | None
    ) -> _Outcome:
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*arguments), None
            given, error = await self._in_thread(function, arguments, share)
            # A decorated coroutine function looks like any other.
            return (await given if inspect.isawaitable(given) else given), error
        except BaseException as error:  # noqa: BLE001 raised by the caller
            return None, error

    async def _in_thread(
        self, function: Callable[..., object], arguments: tuple[object, ...], share: Places | None
    ) -> _Outcome:
        context = copy_context()

        def outcome() -> _Outcome:
            # Not raised in the thread: a future takes no StopIteration, and SystemExit would end this server.
            try:
                return context.run(function, *arguments), None
            except BaseException as error:  # noqa: BLE001 raised by the caller
                return None, error

        with ExitStack() as taken:
            for places in (self._places,) if share is None else (share, self._places):
                await places.take()
                taken.callback(places.give_back)
            running = self._threads.submit(outcome)
            try:
                return await asyncio.wrap_future(running)
            except asyncio.CancelledError:
                # The call was given up, but the thread works on and keeps its places until then.
                loop, kept = asyncio.get_running_loop(), taken.pop_all()

                def give_back(_: object) -> None:  # in the thread, perhaps after the end of the loop
                    with suppress(RuntimeError):
                        loop.call_soon_threadsafe(kept.close)

                running.add_done_callback(give_back)
                raise


@asynccontextmanager
async def open_plug_in(
    key: str, name: str, *, settings: Settings, threads: PlugInThreads, method: str
) -> AsyncGenerator[object]:
    """An instance of the class of that name, built as the contract says; closed with the block.

    Raises ConfigurationError with `key`: it cannot be loaded or built, or has no `method`.
    """
    try:
        # Importing reads files, and may import much.
        kind = await asyncio.to_thread(_load, name)
        parameters = inspect.signature(kind).parameters.values()
        instance = kind(settings) if any(one.kind in _POSITIONAL for one in parameters) else kind()
    except Exception as error:  # a plug-in may raise anything when it is imported and built
        text = str(error).partition("\n")[0][:300].rstrip(".")
        reason = f"{type(error).__name__}{': ' if text else ''}{text}."
        raise errors.ConfigurationError([f"{key}: {name} cannot be loaded: {reason}"]) from error
    if not callable(getattr(instance, method, None)):
        raise errors.ConfigurationError([f"{key}: {name} cannot be loaded: it has no method {method}."])
    try:
        yield instance
    finally:
        if callable(close := getattr(instance, "close", None)):
            try:
                await threads.call(cast("Callable[[], Awaitable[None]]", close))
            except Exception:  # an error of a plug-in must not prevent the closing of the rest
                log.exception("plug-in not closed", plug_in=name)


def _load(name: str) -> Callable[..., object]:
    """The class of `pkg.mod.Class` or `pkg.mod:Class`. Raises ImportError, AttributeError, what the module raises."""
    module_name, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    found: object = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} is no class")
    return found


# A challenge only adds to a 401 that is certain: its time is short, and hanging ones leave most threads to calls.
_CHALLENGE_LIMIT_S = 2.0
_CHALLENGES_AT_ONCE = 2


class PluggedCaller:
    """An authenticator: calls `authenticate` of a plug-in, sync or async."""

    def __init__(self, name: str, instance: object, threads: PlugInThreads, provisioning: Provisioning) -> None:
        self._name = name
        self._issuer = plug_in_issuer(name)
        self._authenticate = getattr(instance, "authenticate")  # noqa: B009 nothing else is known of it
        self._challenge = getattr(instance, "authenticate_header", None)
        self._threads = threads
        self._provisioning = provisioning
        self._challenges = Places(_CHALLENGES_AT_ONCE)

    async def caller(self, request: AuthRequest) -> User | None:
        """The user whom the class names, made at the first call; None when it names none.

        Raises AuthenticationFailed, UserNotFound (a name that is no user's), UserInactive, DatabaseUnavailable;
        RuntimeError or TypeError where the class fails or takes too long: the call fails with an internal error.
        """
        try:
            given = await self._threads.call(self._authenticate, request)
        except errors.AuthenticationFailed:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise RuntimeError(f"{self._name}: {type(error).__name__}") from error
        if given is None:
            return None
        # Of a tuple the first part is the user, the second is the plug-in's own.
        pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given, None)
        person = pair[0] if len(pair) == 2 else None
        if not isinstance(person, AuthenticatedUser) or not is_well_formed(person):
            raise TypeError(f"{self._name}: gave no AuthenticatedUser of texts")
        try:
            return await self._provisioning.user(ExternalIdentity(self._issuer, person.username), person=person)
        except errors.IdentityRefused as refused:
            log.info("user of an authenticator refused", authenticator=self._name, reason=refused.reason)
            raise

    async def challenge(self, request: AuthRequest) -> str | None:
        """The text of `authenticate_header` within 2 s; None when it fails, or gives a text that cannot be a header."""
        if not callable(self._challenge):
            return None
        try:
            text = await self._threads.call(
                self._challenge, request, limit_s=_CHALLENGE_LIMIT_S, share=self._challenges
            )
        except Exception as error:  # noqa: BLE001 passed on to each caller; the reader lives on
            log.warning("challenge left out", authenticator=self._name, error=type(error).__name__)
            return None
        if text is None or (isinstance(text, str) and text.isascii() and text.isprintable()):
            return text
        log.error("challenge is no header", authenticator=self._name)
        return None


class PluggedLogin:
    """A login back end: calls `login` of a plug-in, sync or async."""

    def __init__(self, name: str, instance: object, threads: PlugInThreads, usernames: UsernameRule) -> None:
        self._name = name
        self._usernames = usernames
        self._login = getattr(instance, "login")  # noqa: B009 nothing else is known of it
        self._threads = threads

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user of the class; None for an illegal name, which it never gets. Names are in the form of the case rule.

        Raises AuthenticationFailed, LoginBackendUnavailable for all else that it raises, and under overload.
        """
        try:
            name = self._usernames.read(username).shown
        except errors.InvalidUsername:
            return None
        try:
            given = await self._threads.call(self._login, name, password, request)
        except errors.AuthenticationFailed:
            raise
        except TooManyWaiting:
            raise errors.LoginBackendUnavailable("Too many logins at once.") from None
        except Exception as error:  # a plug-in may raise anything
            log.exception("login back end failed", backend=self._name)
            raise errors.LoginBackendUnavailable(f"{type(error).__name__} in {self._name}") from error
        if given is None or (isinstance(given, AuthenticatedUser) and is_well_formed(given)):
            return given
        log.error("login back end gave no AuthenticatedUser of texts", backend=self._name, given=type(given).__name__)
        raise errors.LoginBackendUnavailable(f"{self._name} gave no AuthenticatedUser of texts")
