"""An engine process as the server sees it: started, given its database, its sessions opened, its end explained."""

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

import structlog

from queryserver import errors
from queryserver.engines.process.channel import AsyncChannel, ChannelClosed, Content, Frame
from queryserver.engines.process.messages import error_message, error_of, packed
from queryserver.engines.protocol import SessionOptions
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineUnavailable, SessionLost, engine_memory_exceeded, engine_process_lost

log = structlog.get_logger(__name__)

START_S = 60.0
"""Until the program is loaded and the database open, on a busy machine."""
STOP_S = 5.0
"""How long a database may take to close."""
_PROGRESS_S = 1.0
_KEPT_LINES = 20
_LINE_BYTES = 2_000
_MOST_CALLS = 32
"""Calls of one process that the server works on at a time."""

_MEMORY_SIGNS = ("bad_alloc", "MemoryError", "cannot allocate memory", "Out of memory", "out of memory")
"""What a process that has no more memory says last."""

_ENVIRONMENT = {
    # The default allocator of Arrow reserves more addresses than the process may have.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    # Each thread would have an arena of its own, of which nothing goes back to the system.
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call of a process."""

    message: Mapping[str, Any] = field(default_factory=dict[str, Any])
    content: Content = field(default=b"", repr=False)
    descriptors: Sequence[int] = ()
    """Open files that the process gets; the server closes its own after that."""


Answer = Callable[[str, Mapping[str, Any], Content], Awaitable[Reply]]
"""Answers the calls of one session: method, arguments, content. Raises domain errors."""


class Cause(Enum):
    """Why the server has ended a process."""

    CLOSED = auto()
    UNRESPONSIVE = auto()
    """It did not stop a statement."""


class EngineProcess:
    """A process for one database, or not yet for any. To be closed by its owner."""

    def __init__(self, process: asyncio.subprocess.Process, control: AsyncChannel, calls: AsyncChannel) -> None:
        self._process = process
        self._control = control
        self._calls = calls
        self._numbers = itertools.count(1)
        self._progress = dict[int, asyncio.Future[int | None]]()
        self._answers = dict[int, Answer]()
        self._last_lines = deque[str](maxlen=_KEPT_LINES)
        self._cause: Cause | None = None
        self._culprit = 0
        self._tasks = set[asyncio.Task[None]]()
        self._stderr = asyncio.create_task(self._read_stderr(), name="engine-process-stderr")
        self._ended = asyncio.create_task(self._watch(), name="engine-process")
        self.running: set[int] = set()
        """Sessions with a statement at work."""

    @classmethod
    async def started(cls, program: str) -> Self:
        """A process that has loaded `program`, Python text. Raises EngineUnavailable."""
        pairs = [socket.socketpair() for _ in range(2)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        numbers = [end.fileno() for end in theirs]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", program, *map(str, numbers),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                env=_ENVIRONMENT, pass_fds=numbers, start_new_session=True,
            )  # fmt: skip
        except BaseException as error:
            for end in ours:
                end.close()
            if not isinstance(error, OSError):
                raise
            log.warning("engine process not started", reason=str(error))
            raise EngineUnavailable("No process can be started for the database.") from None
        finally:
            for end in theirs:
                end.close()
        control, calls = (AsyncChannel(end) for end in ours)
        started = cls(process, control, calls)
        try:
            await started._expected("ready")
        except BaseException:  # a process without an owner must not stay
            await started.close()
            raise
        return started

    async def open(self, configuration: Mapping[str, Any]) -> None:
        """Give it its database. Raises what the opening raises, and EngineUnavailable."""
        try:
            await self._control.send({"kind": "configure", "parent": os.getpid(), **configuration})
            await self._expected("opened")
        except ChannelClosed:
            raise EngineUnavailable("The process of the database has ended.") from None
        for work in (self._receive(), self._serve_calls()):
            self._keep(asyncio.create_task(work, name="engine-process-channel"))

    @property
    def has_ended(self) -> bool:
        """No further session can be opened."""
        return self._cause is not None or self._control.is_closed or self._process.returncode is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    @asynccontextmanager
    async def session(
        self, user_id: int, options: SessionOptions, answer: Answer | None, *, is_loader: bool = False
    ) -> AsyncGenerator[tuple[int, AsyncChannel, Frame]]:
        """Number, channel and first frame of a new session. Raises its domain error, and that of `failure`."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        channel = AsyncChannel(ours)
        if answer is not None:
            self._answers[number] = answer
        try:
            try:
                with theirs:
                    message = {"kind": "session", "session": number, "is_loader": is_loader}
                    request = self._control.send(message, packed((user_id, options)), descriptors=[theirs.fileno()])
                    await asyncio.shield(request)
                first = await channel.receive()
            except ChannelClosed:
                raise await self.failure() from None
            if (error := first.message.get("error")) is not None:
                raise error_of(error)
            yield number, channel, first
        finally:
            channel.close()
            self._answers.pop(number, None)
            self.running.discard(number)

    def interrupt(self, session: int, request: int) -> None:
        """Stop that request of the session; no effect on others."""
        message = {"kind": "interrupt", "session": session, "request": request}
        self._keep(asyncio.create_task(self._control_sent(message), name="engine-process-interrupt"))

    async def progress(self, session: int) -> int | None:
        """0..100 of what the session has at work, None where that is not known."""
        request = next(self._numbers)
        answer = self._progress[request] = asyncio.get_running_loop().create_future()
        try:
            await self._control_sent({"kind": "progress", "session": session, "request": request})
            async with asyncio.timeout(_PROGRESS_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._progress.pop(request, None)

    def kill(self, cause: Cause, session: int = 0) -> None:
        """End it at once; `failure` says why. `session`: the one that is the reason."""
        if self._cause is None:
            self._cause, self._culprit = cause, session
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Close its database and end it, within `STOP_S`. Idempotent."""
        self._cause = self._cause or Cause.CLOSED
        await self._control_sent({"kind": "stop"})
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.shield(self._ended)
        self.kill(Cause.CLOSED)
        await self._ended

    async def failure(self) -> errors.EngineError:
        """What a channel that has closed means for its statement: waits for the end of the process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.shield(self._ended)
        if not self._ended.done():  # it has closed the channel only
            return SessionLost("Invalid session Id: the session is gone.")
        if self._cause is Cause.CLOSED:
            return EngineUnavailable("The engine is closed.")
        text = "\n".join(self._last_lines)
        if self._cause is None and any(sign in text for sign in _MEMORY_SIGNS):
            return engine_memory_exceeded()
        return engine_process_lost()

    def share_of_loss(self, session: int) -> float:
        """How far a session, with a statement at work, is the reason why the process has ended: 0 to 1."""
        match self._cause:
            case Cause.CLOSED:
                return 0.0
            case Cause.UNRESPONSIVE:
                return float(session == self._culprit)
            case None:
                return 1 / max(len(self.running), 1)

    @property
    def was_unresponsive(self) -> bool:
        """The server has ended it because it did not stop a statement."""
        return self._cause is Cause.UNRESPONSIVE

    async def ended(self) -> None:
        """Returns when the process is gone."""
        await asyncio.shield(self._ended)

    async def _watch(self) -> None:
        code = await self._process.wait()
        await self._stderr
        self._control.close()
        self._calls.close()
        for answer in self._progress.values():
            if not answer.done():
                answer.set_result(None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._cause is not Cause.CLOSED:
            cause = self._cause.name.lower() if self._cause is not None else None
            log.warning("engine process ended", code=code, cause=cause, said=list(self._last_lines))

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 it was started with a pipe
        rest = b""
        while part := await self._process.stderr.read(_LINE_BYTES):
            *lines, rest = (rest + part).split(b"\n")
            rest = rest[-_LINE_BYTES:]
            self._last_lines.extend(line[:_LINE_BYTES].decode(errors="replace") for line in lines if line.strip())
        if rest.strip():
            self._last_lines.append(rest.decode(errors="replace"))

    async def _expected(self, kind: str) -> None:
        try:
            async with asyncio.timeout(START_S):
                frame = await self._control.receive()
        except (ChannelClosed, TimeoutError):
            self.kill(Cause.UNRESPONSIVE)
            raise EngineUnavailable("No process can be started for the database.") from None
        if (error := frame.message.get("error")) is not None:
            raise error_of(error)
        if frame.kind != kind:
            self.kill(Cause.UNRESPONSIVE)
            raise EngineUnavailable("No process can be started for the database.")

    async def _control_sent(self, message: Mapping[str, Any]) -> None:
        with suppress(ChannelClosed):
            await asyncio.shield(self._control.send(message))

    async def _receive(self) -> None:
        with suppress(ChannelClosed):
            while True:
                frame = await self._control.receive()
                answer = self._progress.get(frame.message.get("request", 0))
                progress = frame.message.get("progress")
                if answer is not None and not answer.done():
                    answer.set_result(progress if isinstance(progress, int) else None)

    async def _serve_calls(self) -> None:
        """Answer the calls of the process, each in a task."""
        places = asyncio.Semaphore(_MOST_CALLS)
        with suppress(ChannelClosed):
            while True:
                frame = await self._calls.receive()
                await places.acquire()
                task = asyncio.create_task(self._answer(frame), name="engine-process-call")
                task.add_done_callback(lambda _: places.release())
                self._keep(task)

    async def _answer(self, frame: Frame) -> None:
        reply = await self._reply(frame)
        try:
            with suppress(ChannelClosed):
                message = {"call": frame.message.get("call"), **reply.message}
                await asyncio.shield(self._calls.send(message, reply.content, descriptors=reply.descriptors))
        finally:
            for descriptor in reply.descriptors:
                os.close(descriptor)

    async def _reply(self, frame: Frame) -> Reply:
        """What its session answers; an error as a message."""
        answer = self._answers.get(frame.message.get("session", 0))
        method, arguments = frame.message.get("method"), frame.message.get("arguments")
        if answer is None or not isinstance(method, str) or not isinstance(arguments, dict):
            return Reply({"error": error_message(errors.PermissionDenied("The session has no such call."))})
        try:
            return await answer(method, arguments, frame.content)
        except QueryServerError as error:
            return Reply({"error": error_message(error)})
        except Exception:  # the outer wall of a task: the statement gets an error, the log the rest
            log.exception("call of an engine process failed", method=method)
            return Reply({"error": error_message(errors.StorageUnavailable("The server could not answer the call."))})

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
