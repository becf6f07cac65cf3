"""The program of an engine process, which opens one database for the server and runs its sessions.

The process has a control channel, a channel for calls to the server, and one channel per session. One thread serves
each channel. Session threads may block for a long time, but the control thread must always respond.
"""

import itertools
import os
import queue
import resource
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from queryserver.engines.blocking_drivers import DriverAnswer, DriverConnection, LoadStopped, TableWriter
from queryserver.engines.process.channel import Channel, ChannelClosed, Content, Frame
from queryserver.engines.process.messages import (
    BatchReader,
    BatchWriter,
    decode_context,
    decode_error,
    encode_columns,
    encode_error,
    encode_estimate,
    encode_rendered,
    unpacked,
)
from queryserver.engines.protocol import SessionOptions, StatementContext, TableLoad, TableName
from queryserver.engines.record_batches import BATCH_BYTES
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import SessionLost, engine_memory_exceeded
from queryserver.platform.confinement import Confinement, address_space_bytes, confine, name_thread
from queryserver.sql.markers import BoundStatement

_TRACE_LINES = -20
_CALL_S = 120.0
"""Time limit for the server to handle a call from the process."""
_LEAVE_S = 2.0
_FULL, _RETAINED = 0.7, 0.25
"""Shares of the address-space limit.

A process that uses more than the first share is considered full. It may be replaced if a failed statement retains more
than the second share.
"""
_MAX_IDLE_THREADS = 4
_IDLE_NAME = "session"
"""The name of a thread whose session runs no statement."""
_OPEN_FILES = 1024
_NICENESS = 10
"""Niceness that gives the server's event loop priority."""


class HostedDatabase(Protocol):
    """The database that a process has open. Called from session threads. Raises domain errors."""

    def connect(self, session: int, user_id: int, options: SessionOptions, *, is_loader: bool) -> DriverConnection:
        """Open a connection for session number `session`.

        If `is_loader` is set, the connection is passed to `writer`.
        """
        ...

    def writer(self, connection: DriverConnection) -> TableWriter:
        """Create a TableWriter that uses the connection."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether an internal error has invalidated the database, so that the process must exit."""
        ...

    def close(self) -> None:
        """Close the database. Called once, after all connections are closed."""
        ...


class ServerCalls:
    """Calls from the process to the server. Callable from any thread, concurrently."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting = dict[int, _Reply]()
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._receive, name="calls", daemon=True).start()

    def call(self, session: int, method: str, arguments: Mapping[str, Any], content: Content = b"") -> Frame:
        """Call the server on behalf of a session and return its reply. The caller must close the reply's descriptors.

        Raises domain errors, and SessionLost if the server does not reply in time.
        """
        number, reply = next(self._numbers), _Reply()
        with self._lock:
            if self._is_closed:
                raise SessionLost("The connection to the server was closed.")
            self._waiting[number] = reply
        try:
            message = {"call": number, "session": session, "method": method, "arguments": dict(arguments)}
            self._channel.send(message, content)
            is_there = reply.is_there.wait(_CALL_S)
        except ChannelClosed:
            is_there = False
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if not is_there or reply.frame is None:
            raise SessionLost("The server did not respond in time.")
        if (error := reply.frame.message.get("error")) is not None:
            raise decode_error(error)
        return reply.frame

    def _receive(self) -> None:
        with suppress(ChannelClosed):
            while True:
                frame = self._channel.receive()
                with self._lock:
                    reply = self._waiting.get(frame.message.get("call", 0))
                if reply is None:  # the caller no longer waits
                    for descriptor in frame.descriptors:
                        os.close(descriptor)
                else:
                    reply.frame = frame
                    reply.is_there.set()
        with self._lock:
            self._is_closed = True
            waiting = list(self._waiting.values())
        for reply in waiting:
            reply.is_there.set()


class _Reply:
    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.frame: Frame | None = None


class SessionThreads:
    """Threads that each serve one session at a time.

    A few idle threads are kept, because starting and ending a thread for each session takes 5 % of the CPU time of a
    small statement (docs/benchmarks.md).
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []
        self._lock = threading.Lock()

    def start(self, serve: Callable[[], None]) -> None:
        """Call `serve` in a thread. Raises RuntimeError if a new thread is needed and cannot be started."""
        with self._lock:
            calls = self._idle.pop() if self._idle else None
        if calls is None:
            calls = queue.SimpleQueue[Callable[[], None]]()
            threading.Thread(target=self._run, args=(calls,), daemon=True).start()
        calls.put(serve)

    def _run(self, calls: "queue.SimpleQueue[Callable[[], None]]") -> None:
        while True:
            calls.get()()
            with self._lock:
                if len(self._idle) >= _MAX_IDLE_THREADS:
                    return
                self._idle.append(calls)


def _thread_name(context: StatementContext) -> str:
    """Return the name of a thread that runs a statement, by which an administrator finds it."""
    if not context.operation_id:
        return "statement"
    return f"{context.operation_id} user={context.user} connector={context.connector}"


class _Session:
    """One session, served by a thread of its own."""

    def __init__(
        self,
        database: HostedDatabase,
        channel: Channel,
        number: int,
        ended: Callable[[int], None],
        are_others_busy: Callable[[int], bool],
    ) -> None:
        self._database = database
        self._channel = channel
        self._number = number
        self._ended = ended
        self._are_others_busy = are_others_busy
        self._connection: DriverConnection | None = None
        self._writer: TableWriter | None = None
        self._answer: DriverAnswer | None = None
        self._batches = BatchWriter()
        self._unsent = deque[pa.RecordBatch]()
        self._feed: _BatchFeed | None = None
        self._statement: str | BoundStatement | None = None
        self._at_work = threading.Lock()
        """Held while the current request changes, so that an interrupt does not hit the next request."""
        self._request: int | None = None
        self._addresses_before = 0
        """The process's address space in bytes when the request started."""

    @property
    def is_busy(self) -> bool:
        return self._request is not None

    def interrupt(self, request: int | None = None) -> None:
        """Interrupt a request if it is running, or the current request if `request` is None.

        Called by the control thread.
        """
        with self._at_work:
            if self._request is None or request not in (None, self._request):
                return
            if self._feed is not None:
                self._feed.is_stopped = True
            if self._writer is not None:
                self._writer.interrupt()
            elif self._connection is not None:
                self._connection.interrupt()

    def progress(self) -> int | None:
        return self._connection.progress() if self._connection is not None and self._writer is None else None

    def refuse(self, error: QueryServerError) -> None:
        """Report `error` to the server for a session that cannot be started."""
        with suppress(ChannelClosed):
            self._send_error(error, ends=False)
        self._channel.close()

    def serve(self, user_id: int, options: SessionOptions, *, is_loader: bool) -> None:
        """Handle the session's requests until it ends. Runs in the session's thread."""
        try:
            with suppress(ChannelClosed):
                self._reply(lambda: self._connect(user_id, options, is_loader=is_loader))
                while self._connection is not None:
                    frame = self._channel.receive()
                    self._working_on(frame.message.get("request"))
                    self._reply(lambda frame=frame: self._handle(frame))
                    self._working_on(None)
        finally:
            try:
                self._close_answer()
                if self._connection is not None:
                    self._connection.close()
            except Exception:  # noqa: BLE001 the outermost handler of a session, whose end the server waits for
                traceback.print_exc(limit=_TRACE_LINES)
            finally:
                self._ended(self._number)
                self._channel.close()

    def _working_on(self, request: int | None) -> None:
        if request is not None:
            self._addresses_before = address_space_bytes()
        with self._at_work:
            self._request = request

    def _reply(self, work: Callable[[], None]) -> None:
        """Run `work`, which sends its own reply. If it fails, send the error instead. Raises ChannelClosed."""
        failed: QueryServerError | None = None
        try:
            work()
        except QueryServerError as error:
            failed = error.with_traceback(None)
            failed.__cause__ = failed.__context__ = None  # they keep the statement's objects alive
        except MemoryError:
            failed = engine_memory_exceeded()
        except ChannelClosed:
            raise
        except Exception:  # noqa: BLE001 the outermost handler of a session; the server logs the trace
            self._channel.send({"kind": "defect", "trace": traceback.format_exc(limit=_TRACE_LINES)})
        ends = self._database.has_ended or (failed is not None and self._leaves_no_memory(failed))
        if failed is not None:
            self._send_error(failed, ends=ends)
        if ends:
            _leave(1)

    def _leaves_no_memory(self, error: QueryServerError) -> bool:
        """Return whether a failed request retains so much memory that a new process must replace this one.

        For an error other than a lack of memory, returns False while other sessions are busy, because these may still
        need the memory.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        mapped = address_space_bytes()
        if (
            limit == resource.RLIM_INFINITY
            or mapped < _FULL * limit
            or mapped - self._addresses_before < _RETAINED * limit
        ):
            return False
        return error.code == engine_memory_exceeded.code or not self._are_others_busy(self._number)

    def _send_error(self, error: QueryServerError, *, ends: bool) -> None:
        self._channel.send({
            "kind": "error", "error": encode_error(error), "ends": ends,
            "gone": self._connection is not None and not self._connection.is_usable,
            "written": encode_rendered(self._statement) if self._statement is not None else None,
        })  # fmt: skip

    def _connect(self, user_id: int, options: SessionOptions, *, is_loader: bool) -> None:
        connection = self._database.connect(self._number, user_id, options, is_loader=is_loader)
        if is_loader:
            self._writer = self._database.writer(connection)
        self._connection = connection
        self._channel.send({"kind": "connected", "takes_rows": connection.takes_rows})

    def _handle(self, frame: Frame) -> None:
        self._statement = None
        match frame.kind:
            case "run":
                self._run(unpacked(frame.content, object), decode_context(frame.message["context"]))
            case "estimate":
                self._estimate(unpacked(frame.content, object))
            case "next":
                self._send_rows()
            case "close":
                self._close_answer()
                self._channel.send({"kind": "closed"})
            case "exists":
                exists = self._writing.exists(unpacked(frame.content, TableName))
                self._channel.send({"kind": "found", "exists": exists})
            case "drop":
                self._writing.drop(unpacked(frame.content, TableName))
                self._channel.send({"kind": "dropped"})
            case "load":
                self._load(unpacked(frame.content, TableLoad))
            case _:  # remaining frames of a failed load
                pass

    @property
    def _writing(self) -> TableWriter:
        assert self._writer is not None  # noqa: S101 the server opened the session as a loader
        return self._writer

    def _run(self, statement: object, context: StatementContext) -> None:
        assert isinstance(statement, str | BoundStatement)  # noqa: S101 both sides are one program
        assert self._connection is not None  # noqa: S101 requests arrive only once it is connected
        self._close_answer()
        self._statement = statement
        name_thread(_thread_name(context))
        answer = self._answer = self._connection.run(statement, context)
        columns = None if answer.columns is None else encode_columns(answer.columns)
        self._channel.send({"kind": "answer", "columns": columns, "modified_rows": answer.modified_rows})
        if columns is not None:  # the first rows follow the columns without a request
            self._batches = BatchWriter()
            self._send_rows()

    def _estimate(self, statement: object) -> None:
        assert isinstance(statement, str | BoundStatement)  # noqa: S101 both sides are one program
        assert self._connection is not None  # noqa: S101 requests arrive only once it is connected
        self._close_answer()
        self._channel.send({"kind": "estimate", **encode_estimate(self._connection.estimate(statement))})

    def _send_rows(self) -> None:
        """Send rows up to the size of one batch.

        The size is limited because the server holds each frame in memory. A driver's batches may be larger.
        """
        answer = self._answer
        assert answer is not None  # noqa: S101 the server has received its columns
        if not self._unsent:
            self._unsent.extend(answer.next_batches())
        batches, size = list[pa.RecordBatch](), 0
        while self._unsent and (not batches or size + self._unsent[0].nbytes <= BATCH_BYTES):
            batches.append(self._unsent.popleft())
            size += batches[-1].nbytes
        sizes, contents = self._batches.parts(batches)
        self._channel.send({"kind": "rows", "parts": sizes, "modified_rows": answer.modified_rows}, *contents)

    def _close_answer(self) -> None:
        name_thread(_IDLE_NAME)
        answer, self._answer = self._answer, None
        self._unsent.clear()
        if answer is not None:
            answer.close()

    def _load(self, load: TableLoad) -> None:
        """Load the batches that follow on the channel. Frames are read up to `end`, even if the load fails earlier."""
        feed = self._feed = _BatchFeed(self._channel)
        try:
            rows = self._writing.write(load, feed.batches())
        finally:
            self._feed = None
            feed.drain()
        self._channel.send({"kind": "loaded", "rows": rows})


class _BatchFeed:
    """Reads a load's batches from its session's channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reader = BatchReader()
        self._is_over = False
        self.is_stopped = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Raises LoadStopped if the server aborts the load."""
        while not self._is_over:
            frame = self._channel.receive()
            match frame.kind:
                case "batches":
                    yield from self._reader.batches(frame)
                case "end":
                    self._is_over = True
                case _:
                    self._is_over = self.is_stopped = True
            if self.is_stopped:
                raise LoadStopped("the server aborted the load")

    def drain(self) -> None:
        """Discard the load's remaining frames. The server reads the reply only after it has sent them."""
        while not self._is_over:
            self._is_over = self._channel.receive().kind != "batches"


class Host:
    """Handles the server's control messages and owns the process's sessions."""

    def __init__(self, control: Channel, database: HostedDatabase) -> None:
        self._control = control
        self._database = database
        self._sessions = dict[int, _Session]()
        self._threads = SessionThreads()
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve until the server closes the channel or sends `stop`, then exit the process."""
        try:
            with suppress(ChannelClosed):
                while (frame := self._control.receive()).kind != "stop":
                    self._handle(frame)
            self._close()
        except Exception:  # noqa: BLE001 the outermost handler of the process, which must not wait for its threads
            traceback.print_exc(limit=_TRACE_LINES)
            _leave(1)

    def _handle(self, frame: Frame) -> None:
        number = frame.message.get("session", 0)
        with self._lock:
            session = self._sessions.get(number)
        match frame.kind:
            case "session":
                (descriptor,) = frame.descriptors
                channel = Channel(socket.socket(fileno=descriptor))
                user_id, database, settings = unpacked(frame.content, tuple)
                options = SessionOptions(database=database, settings=settings)
                session = _Session(self._database, channel, number, self._forget, self._are_others_busy)
                with self._lock:
                    self._sessions[number] = session
                try:
                    self._threads.start(partial(session.serve, user_id, options, is_loader=frame.message["is_loader"]))
                except RuntimeError:  # no memory for a thread's stack
                    self._forget(number)
                    session.refuse(engine_memory_exceeded())
            case "interrupt" if session is not None:
                session.interrupt(frame.message["request"])
            case "progress":
                progress = session.progress() if session is not None else None
                self._control.send({"kind": "progress", "request": frame.message["request"], "progress": progress})
            case _:
                pass

    def _are_others_busy(self, number: int) -> bool:
        with self._lock:
            return any(session.is_busy for other, session in self._sessions.items() if other != number)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._sessions.pop(number, None)

    def _close(self) -> None:
        """Interrupt the sessions, wait briefly for them to end, then exit.

        The database is closed only if all sessions have ended; it is safe to exit without closing it.
        """
        pause = threading.Event()
        for _ in range(int(_LEAVE_S / 0.05)):
            with self._lock:
                sessions = list(self._sessions.values())
            if not sessions:
                self._database.close()
                _leave(0)
            for session in sessions:
                session.interrupt()
            pause.wait(0.05)
        _leave(0)


def _leave(code: int) -> NoReturn:
    """Exit immediately, because a driver's threads may never end."""
    sys.stderr.flush()
    os._exit(code)


def confine_process(configuration: Mapping[str, Any], writable: Iterable[Path]) -> None:
    """Confine this process.

    It can then use at most the configuration's `memory_bytes` in addition to its current memory. If the kernel supports
    Landlock, the process can write only below the existing directories in `writable`.
    """
    confine(
        Confinement(
            writable=tuple(folder for folder in writable if folder.is_dir()),
            memory_bytes=address_space_bytes() + configuration["memory_bytes"],
            open_files=_OPEN_FILES,
            niceness=_NICENESS,
            parent=configuration["parent"],
        )
    )


def run_process(open_database: Callable[[Mapping[str, Any], Channel], HostedDatabase]) -> None:
    """Run an engine process. The descriptors of its channels are in `sys.argv`.

    Once all modules are imported, the process waits for the configuration. `open_database` receives the configuration
    and the channel for `ServerCalls`, confines the process and opens the database. It may raise domain errors.
    """
    control, calls = (Channel(socket.socket(fileno=int(number))) for number in sys.argv[1:3])
    try:
        control.send({"kind": "ready"})
        configuration = control.receive()
        try:
            database = open_database(configuration.message, calls)
        except QueryServerError as error:
            control.send({"kind": "error", "error": encode_error(error)})
            return
        control.send({"kind": "opened"})
    except ChannelClosed:
        return
    Host(control, database).serve()
