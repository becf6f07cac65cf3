"""The server side of an engine process: its start and configuration, its sessions, and the reason for its exit."""

import asyncio
import itertools
import os
import re
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

import structlog

from queryserver import errors
from queryserver.engines.process.channel import MAX_CONTENT_BYTES, AsyncChannel, ChannelClosed, Content, Frame
from queryserver.engines.process.messages import decode_error, encode_error, packed
from queryserver.engines.protocol import SessionOptions, StatementContext
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineUnavailable, engine_memory_exceeded, engine_process_lost
from queryserver.formats.arrow import ROW_SIZE_FACTOR

log = structlog.get_logger(__name__)

START_S = 60.0
"""Time limit for loading the program, and for opening the database, on a busy machine."""
STOP_S = 5.0
"""How long a process may take to close its database or to exit before it is killed."""
_PROGRESS_S = 1.0
_STDERR_LINES = 20
_LINE_BYTES = 2_000
_CALL_BYTES = 64 * 1024 * 1024
"""Maximum content size of a call. Files are written in pieces of a few MiB."""
_MAX_CALLS = 32
"""Maximum number of calls from one process that the server handles concurrently."""

_MAX_SILENCE_S = 30.0
"""A process that has not responded for this long is killed at the next request, because its control thread must hang.
"""
_STDERR_S = 1.0
_STDERR_BYTES = 64 * 1024
_STDERR_PAUSE_S = 0.02
"""Pause between reads, so that a process that writes without end does not occupy the event loop."""

_FRAME_BYTES = 32 * 1024 * 1024
"""Frame size allowed in addition to the largest row, for the frame's structure and for strings that are not UTF-8."""

_OUT_OF_MEMORY_MESSAGES = re.compile(
    r"bad_alloc|memoryerror|malloc of size|memory allocation of \d+ bytes failed"  # C++, Python, Arrow, Rust
    r"|cannot allocate|can't allocate|out of memory|error allocating"  # glibc, libraries, jemalloc
    r"|can't start new thread|resource temporarily unavailable",  # no address space for a thread's stack
    re.IGNORECASE,
)
"""Final messages of a process that is out of memory. It may also crash without such a message."""

_ENVIRONMENT = {
    # Arrow's default allocator reserves more address space than the process may use, and starts a thread that
    # Landlock would not confine.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    # Freed memory must return to the system, or the next statement would run out of address space. All threads
    # therefore share one arena, large blocks are mapped separately, and DuckDB's allocator retains no address ranges.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024 * 1024),
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a call from the process."""

    message: Mapping[str, Any] = field(default_factory=dict[str, Any])
    content: Content = field(default=b"", repr=False)
    descriptors: Sequence[int] = ()
    """Open files to pass to the process. The server closes its own descriptors afterward."""


CallHandler = Callable[[str, Mapping[str, Any], Content], Awaitable[Reply]]
"""Handles one session's calls, given method, arguments and content. Raises domain errors."""


class EndCause(Enum):
    """Why a process was ended."""

    CLOSED = auto()
    UNRESPONSIVE = auto()
    """The process did not cancel a statement in time, or does not respond at all."""
    BROKEN = auto()
    """The process sent invalid messages."""
    FAILED = auto()
    """The process reported that an internal error invalidated its database, and exits."""


class EngineProcess:
    """A process for one database, which `open` opens. The owner must close this object."""

    def __init__(self, process: asyncio.subprocess.Process, control: AsyncChannel, calls: AsyncChannel) -> None:
        self._process = process
        self._control = control
        self._calls = calls
        self._numbers = itertools.count(1)
        self._progress = dict[int, asyncio.Future[int | None]]()
        self._answers = dict[int, CallHandler]()
        self._last_lines = deque[str](maxlen=_STDERR_LINES)
        self._cause: EndCause | None = None
        self._culprit = 0
        self._at_work_at_its_end: Mapping[int, StatementContext] | None = None
        self._frame_bytes = MAX_CONTENT_BYTES
        self._silent_since: float | None = None
        """When the oldest unanswered request was sent, even if its caller no longer waits."""
        self._tasks = set[asyncio.Task[None]]()
        self._stderr = asyncio.create_task(self._read_stderr(), name="engine-process-stderr")
        self._ended = asyncio.create_task(self._watch(), name="engine-process")
        self.running = dict[int, StatementContext]()
        """The contexts of the running statements, by the number of the session."""

    @classmethod
    async def started(cls, program: str) -> Self:
        """Start a process that loads `program` (Python source). Raises EngineUnavailable."""
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
            log.warning("engine process could not be started", reason=str(error))
            raise EngineUnavailable("The database process could not be started.") from None
        finally:
            for end in theirs:
                end.close()
        control, calls = (AsyncChannel(end, max_content_bytes=_CALL_BYTES) for end in ours)
        started = cls(process, control, calls)
        try:
            await started._expect("ready")
        except BaseException:  # the process must not remain without an owner
            await started.close()
            raise
        return started

    async def open(self, configuration: Mapping[str, Any]) -> None:
        """Open the database. Raises EngineUnavailable, and the errors that occur when the database is opened.

        If `configuration` contains `cell_max_bytes`, that value also limits the size of the sessions' frames.
        """
        if (cell_max_bytes := configuration.get("cell_max_bytes")) is not None:
            self._frame_bytes = ROW_SIZE_FACTOR * cell_max_bytes + _FRAME_BYTES
        try:
            await self._control.send({"kind": "configure", "parent": os.getpid(), **configuration})
            await self._expect("opened")
        except ChannelClosed:
            raise EngineUnavailable("The database process has exited.") from None
        for work in (self._receive(), self._serve_calls()):
            self._keep_task(asyncio.create_task(work, name="engine-process-channel"))

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended or must end, so that no further session can be opened."""
        return self._cause is not None or self._control.is_closed or self._process.returncode is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    @asynccontextmanager
    async def session(
        self, user_id: int, options: SessionOptions, answer: CallHandler | None, *, is_loader: bool = False
    ) -> AsyncGenerator[tuple[int, AsyncChannel, Frame]]:
        """Open a session and yield its number, channel and first frame.

        Raises the session's domain error, or EngineUnavailable if the process ends before any statement has started.
        """
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        channel = AsyncChannel(ours, max_content_bytes=self._frame_bytes)
        message = {"kind": "session", "session": number, "is_loader": is_loader}
        # A plain tuple, because the process takes twice as long to decode the options' class.
        sent = packed((user_id, options.database, dict(options.settings)))
        request = self._send_control(message, sent, descriptors=[theirs.fileno()])
        sending = asyncio.create_task(request, name="engine-process-session")
        # The descriptor is closed only after it has been sent, even if the caller is canceled. Otherwise, its number
        # could be reused for another file before it is sent.
        sending.add_done_callback(lambda _: theirs.close())
        self._keep_task(sending)
        self._note_request()
        if answer is not None:
            self._answers[number] = answer
        try:
            yield number, channel, await self._first_frame(channel)
        finally:
            channel.close()
            self._answers.pop(number, None)
            self.running.pop(number, None)

    async def _first_frame(self, channel: AsyncChannel) -> Frame:
        try:
            async with asyncio.timeout(_MAX_SILENCE_S):
                first = await channel.receive()
            self._silent_since = None
            if (error := first.message.get("error")) is None:
                return first
            raise decode_error(error)
        except TimeoutError:
            self.kill(EndCause.UNRESPONSIVE)
        except ChannelClosed:
            pass
        await self._wait_until_gone()
        raise EngineUnavailable("The database process has exited. Retry later.")

    def interrupt(self, session: int, request: int) -> None:
        """Interrupt a session's request if it is still running."""
        message = {"kind": "interrupt", "session": session, "request": request}
        self._keep_task(asyncio.create_task(self._send_control(message), name="engine-process-interrupt"))

    async def progress(self, session: int) -> int | None:
        """Return the progress of the session's statement (0 to 100), or None if unknown.

        Concurrent callers share one request per session.
        """
        question = self._progress.get(session)
        if question is None:
            question = self._progress[session] = asyncio.get_running_loop().create_future()
            message = {"kind": "progress", "session": session, "request": session}
            self._keep_task(asyncio.create_task(self._send_control(message), name="engine-process-progress"))
        self._note_request()
        await asyncio.wait({question}, timeout=_PROGRESS_S)
        return question.result() if question.done() else None

    def kill(self, cause: EndCause, session: int = 0) -> None:
        """Record `cause`, and kill the process. `session` is the number of the session responsible; 0 if none is."""
        self.record_end(cause, session)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def record_end(self, cause: EndCause, session: int = 0) -> None:
        """Record why the process has ended or must end, so that no more sessions are opened.

        Only the first cause is recorded.
        """
        if self._cause is None and (cause is EndCause.FAILED or not self.has_ended):
            self._cause, self._culprit = cause, session

    async def close(self) -> None:
        """Close the database and end the process. Kill it if this takes longer than `STOP_S`. Idempotent."""
        self.record_end(EndCause.CLOSED)
        self._keep_task(asyncio.create_task(self._send_control({"kind": "stop"}), name="engine-process-stop"))
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.ended()
        self.kill(EndCause.CLOSED)
        await self.ended()

    async def failure(self) -> errors.EngineError:
        """Wait until the process has exited, and return the error for a statement whose channel was closed.

        The error never claims that the statement was not started.
        """
        await self._wait_until_gone()
        if self._cause is None and _OUT_OF_MEMORY_MESSAGES.search("\n".join(self._last_lines)):
            return engine_memory_exceeded()
        return engine_process_lost()

    def loss_share(self, session: int) -> float:
        """Return the session's share of responsibility for the loss of the process, from 0 to 1."""
        if self._cause is EndCause.CLOSED:
            return 0.0
        if self._culprit:
            return float(session == self._culprit)
        at_work = self.running if self._at_work_at_its_end is None else self._at_work_at_its_end
        return 1 / len(at_work) if session in at_work else 0.0

    @property
    def was_unresponsive(self) -> bool:
        """Whether the server killed the process because it did not respond or did not cancel a statement in time."""
        return self._cause is EndCause.UNRESPONSIVE

    async def ended(self) -> None:
        """Wait until the process has exited."""
        await asyncio.shield(self._ended)

    def _note_request(self) -> None:
        now = time.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since > _MAX_SILENCE_S:
            self.kill(EndCause.UNRESPONSIVE)

    async def _wait_until_gone(self) -> None:
        """Wait for the exit of a process that has closed a channel.

        A process that does not exit in time is killed, because it had no reason to close the channel.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.ended()
        if not self._ended.done():
            self.kill(EndCause.BROKEN)
            await self.ended()

    async def _watch(self) -> None:
        code = await self._process.wait()
        self._at_work_at_its_end = at_work = dict(self.running)
        await asyncio.wait({self._stderr}, timeout=_STDERR_S)
        self._stderr.cancel()  # a child process, where the kernel permits one, may still have the pipe open
        self._control.close()
        self._calls.close()
        for question in self._progress.values():
            if not question.done():
                question.set_result(None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._cause is not EndCause.CLOSED:
            cause = self._cause.name.lower() if self._cause is not None else None
            statements = [
                {"operation_id": one.operation_id, "user": one.user, "connector": one.connector}
                for one in at_work.values()
            ]
            log.warning(
                "engine process exited",
                pid=self.pid, code=code, cause=cause, statements=statements, said=list(self._last_lines),
            )  # fmt: skip

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 it was started with a pipe
        rest = b""
        while part := await self._process.stderr.read(_STDERR_BYTES):
            *lines, rest = (rest + part).split(b"\n")
            rest = rest[-_LINE_BYTES:]
            said = (line[:_LINE_BYTES].decode(errors="replace") for line in lines[-_STDERR_LINES:] if line.strip())
            self._last_lines.extend(said)
            if len(part) == _STDERR_BYTES:
                await asyncio.sleep(_STDERR_PAUSE_S)
        if rest.strip():
            self._last_lines.append(rest.decode(errors="replace"))

    async def _expect(self, kind: str) -> None:
        try:
            async with asyncio.timeout(START_S):
                frame = await self._control.receive()
        except (ChannelClosed, TimeoutError):
            self.kill(EndCause.UNRESPONSIVE)
            raise EngineUnavailable("The database process could not be started.") from None
        if (error := frame.message.get("error")) is not None:
            raise decode_error(error)
        if frame.kind != kind:
            self.kill(EndCause.UNRESPONSIVE)
            raise EngineUnavailable("The database process could not be started.")

    async def _send_control(
        self, message: Mapping[str, Any], content: Content = b"", *, descriptors: Sequence[int] = ()
    ) -> None:
        """Send a control message.

        Callers run this in a task, so that the frame is sent completely even if they are canceled.
        """
        with suppress(ChannelClosed):
            await self._control.send(message, content, descriptors=descriptors)

    async def _receive(self) -> None:
        with suppress(ChannelClosed):
            while True:
                frame = await self._control.receive()
                self._silent_since = None
                question = self._progress.pop(_number(frame, "request"), None)
                progress = frame.message.get("progress")
                if question is not None and not question.done():
                    is_share = isinstance(progress, int) and 0 <= progress <= 100
                    question.set_result(progress if is_share else None)

    async def _serve_calls(self) -> None:
        """Handle calls from the process, each in its own task."""
        slots = asyncio.Semaphore(_MAX_CALLS)
        with suppress(ChannelClosed):
            while True:
                frame = await self._calls.receive()
                await slots.acquire()
                task = asyncio.create_task(self._answer(frame), name="engine-process-call")
                task.add_done_callback(lambda _: slots.release())
                self._keep_task(task)

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
        """Return the session's reply to a call. If a domain error is raised, the reply contains the error."""
        answer = self._answers.get(_number(frame, "session"))
        method, arguments = frame.message.get("method"), frame.message.get("arguments")
        if answer is None or not isinstance(method, str) or not isinstance(arguments, dict):
            return Reply({"error": encode_error(errors.PermissionDenied("The session does not support this call."))})
        try:
            return await answer(method, arguments, frame.content)
        except QueryServerError as error:
            return Reply({"error": encode_error(error)})
        except Exception:  # the outermost handler of a task: the statement gets an error, and the log gets the details
            log.exception("engine process call failed", method=method)
            return Reply({"error": encode_error(errors.StorageUnavailable("The request failed; see the server log."))})

    def _keep_task(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it is done or the process has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _number(frame: Frame, name: str) -> int:
    """Return an integer field of a message; 0 if it is missing or has another type."""
    number = frame.message.get(name)
    return number if isinstance(number, int) else 0
