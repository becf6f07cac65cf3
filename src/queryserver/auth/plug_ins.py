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

from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.user import AuthenticatedUser
from queryserver.settings import Settings

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
