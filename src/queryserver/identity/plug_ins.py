"""Classes of others that say who calls: loading, building and calling them (Contract platform 4.1, 4.2)."""

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

from queryserver.errors.base import (
    AuthenticationFailed,
    ConfigurationError,
    IdentityRefused,
    InvalidUsername,
    LoginBackendUnavailable,
)
from queryserver.identity.model import AuthenticatedUser, ExternalIdentity, User, UsernameRule, plug_in_issuer
from queryserver.identity.protocols import AuthRequest, RequestInfo
from queryserver.identity.provisioning import Arrivals
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_THREADS = 8
_LIMIT_S = 10.0

_Outcome: TypeAlias = tuple[object, BaseException | None]


def is_import_path(name: str) -> bool:
    """Whether a name of the settings is a class of others; built-in names have neither dot nor colon."""
    return "." in name or ":" in name


def is_well_formed(person: AuthenticatedUser) -> bool:
    """Whether what a plug-in says about somebody is texts that can be kept: others' code is not held to our types."""
    texts: list[object] = [person.username, person.first_name, person.last_name, person.email]
    groups: object = person.groups
    if isinstance(groups, Collection) and not isinstance(groups, str | bytes | Mapping):
        texts += groups
    elif groups is not None:
        return False
    return all(isinstance(text, str) and _can_be_kept(text) for text in texts)


def _can_be_kept(text: str) -> bool:
    """UTF-8 has no halves of surrogate pairs, PostgreSQL no NUL."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


class TooManyWaiting(Exception):
    """So many calls wait for a thread that one more would wait in vain."""


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
        """Let the next one in."""
        self._free.release()


class PlugInThreads:
    """Where the blocking functions of plug-ins run: at most 8 at once, each call has 10 s, its wait included.

    With `most_waiting`, a call that finds so many waiting raises TooManyWaiting at once.
    """

    def __init__(self, *, limit_s: float = _LIMIT_S, most_waiting: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="plug-in")
        # Calls wait here and not in the pool: what is given up there stays, password and all, until a thread is free.
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
        """What a function gives, be it async or not. Raises Exceptions that it raises, TimeoutError, TooManyWaiting.

        `limit_s` shortens its time, `share` is the part of the threads that calls of its kind may fill.
        In a task of its own: it may raise what would end this server, or pass over being cancelled.
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
            message = f"{type(error).__name__} in a plug-in"
            raise RuntimeError(message) from error
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
                # Nobody waits any more, but the thread works on.
                loop, kept = asyncio.get_running_loop(), taken.pop_all()
                running.add_done_callback(lambda _: _give_back(loop, kept))
                raise


def _give_back(loop: asyncio.AbstractEventLoop, kept: ExitStack) -> None:
    """Called in the thread. The loop may have ended before it."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(kept.close)


@asynccontextmanager
async def open_plug_in(
    key: str, name: str, *, settings: Settings, threads: PlugInThreads, method: str
) -> AsyncGenerator[object]:
    """An instance of the class that `name` stands for, built as the contract says; closed with the block.

    Raises ConfigurationError with `key`: it cannot be loaded or built, or has no `method`.
    """
    try:
        # Importing reads files, and may import much.
        kind = await asyncio.to_thread(_load, name)
        instance = kind(settings) if _takes_an_argument(kind) else kind()
    except Exception as error:  # code of others may raise anything when it is imported and built
        raise ConfigurationError([f"{key}: {name} cannot be loaded: {_told(error)}"]) from error
    if not callable(getattr(instance, method, None)):
        raise ConfigurationError([f"{key}: {name} cannot be loaded: it has no method {method}."])
    try:
        yield instance
    finally:
        await _close(name, instance, threads)


def _load(name: str) -> Callable[..., object]:
    """The class of `pkg.mod.Class` or `pkg.mod:Class`. Raises ImportError, AttributeError, what the module raises."""
    module_name, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    found: object = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        message = f"{path} is no class"
        raise TypeError(message)
    return found


def _takes_an_argument(kind: Callable[..., object]) -> bool:
    places = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in places for parameter in inspect.signature(kind).parameters.values())


async def _close(name: str, instance: object, threads: PlugInThreads) -> None:
    close = getattr(instance, "close", None)
    if not callable(close):
        return
    try:
        await threads.call(cast("Callable[[], Awaitable[None]]", close))
    except Exception:  # somebody else's code must not keep us from closing the rest
        log.exception("plug-in not closed", plug_in=name)


def _told(error: Exception) -> str:
    text = str(error).partition("\n")[0][:300].rstrip(".")
    return f"{type(error).__name__}{': ' if text else ''}{text}."


# A challenge adorns a 401 that is certain: nobody waits long for it, and hanging ones leave most threads to calls.
_CHALLENGE_LIMIT_S = 2.0
_CHALLENGES_AT_ONCE = 2


class PluggedCaller:
    """See `identity.protocols.CallerSource`: calls `authenticate` of a class of others, sync or async."""

    def __init__(self, name: str, instance: object, threads: PlugInThreads, arrivals: Arrivals) -> None:
        self._name = name
        self._issuer = plug_in_issuer(name)
        self._authenticate = getattr(instance, "authenticate")  # noqa: B009 nothing else is known of it
        self._challenge = getattr(instance, "authenticate_header", None)
        self._threads = threads
        self._arrivals = arrivals
        self._challenges = Places(_CHALLENGES_AT_ONCE)

    async def caller(self, request: AuthRequest) -> User | None:
        """The user whom the class names, made at first sight; None when it names none.

        Raises AuthenticationFailed, UserNotFound (a name that is no user's), UserInactive, DatabaseUnavailable;
        RuntimeError or TypeError where the class fails or takes too long: the call fails as for any fault of ours.
        """
        try:
            given = await self._threads.call(self._authenticate, request)
        except AuthenticationFailed:
            raise
        except Exception as error:  # code of others may raise anything
            message = f"{self._name}: {type(error).__name__}"
            raise RuntimeError(message) from error
        if given is None:
            return None
        person = self._person(given)
        try:
            return await self._arrivals.user(ExternalIdentity(self._issuer, person.username), person=person)
        except IdentityRefused as refused:
            log.info("user of an authenticator refused", authenticator=self._name, reason=refused.reason)
            raise

    async def challenge(self, request: AuthRequest) -> str | None:
        """What `authenticate_header` says within 2 s; None when it fails, or gives a text that cannot be a header."""
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

    def _person(self, given: object) -> AuthenticatedUser:
        """The user of the result, of which a tuple holds something of the plug-in's own beside the user."""
        pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given, None)
        person = pair[0] if len(pair) == 2 else None
        if not isinstance(person, AuthenticatedUser) or not is_well_formed(person):
            message = f"{self._name}: gave no AuthenticatedUser of texts"
            raise TypeError(message)
        return person


class PluggedLogin:
    """See `identity.protocols.LoginBackend`: calls the method `login` of a class of others, sync or async."""

    def __init__(self, name: str, instance: object, threads: PlugInThreads, usernames: UsernameRule) -> None:
        self._name = name
        self._usernames = usernames
        self._login = getattr(instance, "login")  # noqa: B009 nothing else is known of it
        self._threads = threads

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """What the class says of the name by the case rule; of an illegal one it is not asked.

        Raises AuthenticationFailed, LoginBackendUnavailable for all else that it raises, and under overload.
        """
        try:
            name = self._usernames.read(username).shown
        except InvalidUsername:
            return None
        try:
            given = await self._threads.call(self._login, name, password, request)
        except AuthenticationFailed:
            raise
        except TooManyWaiting:
            raise LoginBackendUnavailable("Too many logins at once.") from None
        except Exception as error:  # code of others may raise anything
            log.exception("login back end failed", backend=self._name)
            raise LoginBackendUnavailable(f"{type(error).__name__} in {self._name}") from error
        if given is None or (isinstance(given, AuthenticatedUser) and is_well_formed(given)):
            return given
        log.error("login back end gave no AuthenticatedUser of texts", backend=self._name, given=type(given).__name__)
        raise LoginBackendUnavailable(f"{self._name} gave no AuthenticatedUser of texts")
