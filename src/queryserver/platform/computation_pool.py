"""Runs computations on user input in worker processes with limits on time and memory."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import orjson
import structlog

from queryserver import errors
from queryserver.errors.base import QueryServerError, ServiceUnavailable, TooComplex
from queryserver.platform.computation import BROKEN, EXCEEDED, HEAD, MAX_BYTES, REFUSED, RESULT, TASK, Task
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.settings.desktop import DesktopSettings

log = structlog.get_logger(__name__)

_PROGRAM = "from queryserver.computation_worker import main; main()"
_LARGE_BYTES = 512 * 1024  # larger results are parsed in a thread, as each MiB would block the event loop for 10 ms
_BUFFER_BYTES = 256 * 1024
_WALL_TIME_FACTOR = 4  # wall-clock limit as a multiple of the CPU time limit, since the machine may be busy
_ENVIRONMENT = {
    # Arrow's default allocator reserves more address space than a worker is allowed.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    # The memory limit counts address space. Otherwise glibc would keep a mapping for each large block that Arrow frees,
    # which adds up to gigabytes of unused address space for a file with many columns.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    # Otherwise glibc would return the end of the heap to the system after nearly each step of a preview.
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024 * 1024),
}


class ComputationPool:
    """A `ComputationExecutor` with up to `processes` worker processes, started on demand.

    Each computation may use `time_s` seconds of CPU time and `memory_bytes` of memory. A worker that has been idle for
    `idle_s` seconds is stopped.
    """

    def __init__(
        self, *, processes: int = 2, time_s: int = 20, memory_bytes: int = 1024**3, idle_s: float = 120.0
    ) -> None:
        self._time_s = time_s
        self._memory_bytes = memory_bytes
        self._idle_s = idle_s
        self._slots = FairSemaphore(processes)
        self._idle: list[_Worker] = []
        self._running: set[_Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._warm_up: asyncio.Task[Any] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        for worker in list(self._idle):
            self._end(worker)
        # Killing the workers makes their callers read end-of-file and clean up as after any failure.
        running = list(self._running)
        for worker in running:
            worker.kill()
        await asyncio.gather(*(worker.is_abandoned.wait() for worker in running))
        if self._warm_up is not None:
            await asyncio.gather(self._warm_up, return_exceptions=True)
        await asyncio.gather(*self._ending)

    @property
    def running(self) -> list[int]:
        return [worker.process.pid for worker in self._running]

    async def run(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> Any:
        request = orjson.dumps({"task": task, "options": dict(options), "limit_s": self._time_s})
        async with self._slots.slot(user_id):
            worker = await self._worker()
            self._running.add(worker)
            try:
                async with asyncio.timeout(_WALL_TIME_FACTOR * self._time_s):
                    kind, answer, is_last = await worker.answer(request, content)
            except TimeoutError:
                self._end(worker)
                raise TooComplex("The call takes more time than one call may use.") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                self._end(worker)
                raise await self._unexpected_exit(worker, task) from None
            except BaseException:  # also on cancellation: the worker is in the middle of a task and cannot be reused
                self._end(worker)
                raise
            self._running.discard(worker)
            if is_last or self._is_closed:
                self._end(worker)
            else:
                self._idle.append(worker)
                worker.retire_after(self._idle_s, lambda: self._end(worker))
        return _result(kind, answer, task)

    def warm_up(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> None:
        is_warming = self._warm_up is not None and not self._warm_up.done()
        if not (self._idle or self._running or is_warming or self._is_closed):
            self._warm_up = asyncio.create_task(self._try(user_id, task, options, content), name="warm-up")

    async def _try(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> None:
        """Run a task whose outcome does not matter. `run` has logged failures that need attention."""
        with suppress(QueryServerError, RuntimeError):
            await self.run(user_id, task, options, content)

    async def _unexpected_exit(self, worker: "_Worker", task: Task) -> QueryServerError:
        """Return the error for a worker that exceeded its limits, was killed by the system or crashed."""
        code = await worker.process.wait()
        if self._is_closed:
            return ServiceUnavailable("The server is stopping.")
        if code >= 0:
            # The process was not killed by a signal, so it did not exceed a limit: it failed to start, or it has a bug.
            log.error("computation worker exited unexpectedly", task=task.value, code=code)
            return ServiceUnavailable("The process for this call exited unexpectedly. Retry the call.")
        log.warning("computation worker killed", task=task.value, code=code)
        return TooComplex("The call takes more time or memory than one call may use.")

    async def _worker(self) -> "_Worker":
        """Return an idle or new worker. Raises ServiceUnavailable."""
        while self._idle:
            worker = self._idle.pop()
            worker.cancel_retirement()
            if worker.process.returncode is None:
                return worker
            self._end(worker)
        worker = await _Worker.started(self._memory_bytes)
        if self._is_closed:
            self._end(worker)
            raise ServiceUnavailable("The server is stopping.")
        return worker

    def _end(self, worker: "_Worker") -> None:
        """Kill the worker process and wait for its exit in a background task."""
        self._running.discard(worker)
        with suppress(ValueError):
            self._idle.remove(worker)
        worker.cancel_retirement()
        worker.kill()
        worker.is_abandoned.set()
        ending = asyncio.create_task(worker.ended(), name="computation-end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None  # noqa: S101 it was started with pipes
        assert process.stdout is not None  # noqa: S101 it was started with pipes
        self.process = process
        self._requests = process.stdin
        self._answers = process.stdout
        self._retirement: asyncio.TimerHandle | None = None
        self.is_abandoned = asyncio.Event()
        """Set when no call will use the worker again."""

    @classmethod
    async def started(cls, memory_bytes: int) -> Self:
        """Start a worker process. Raises ServiceUnavailable."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-c",
                _PROGRAM,
                str(memory_bytes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_ENVIRONMENT,
                start_new_session=True,
                limit=_BUFFER_BYTES,
            )
        except OSError as error:
            log.warning("computation worker could not be started", reason=str(error))
            raise ServiceUnavailable("The process for this call could not be started.") from None
        return cls(process)

    async def answer(self, request: bytes, content: bytes) -> tuple[bytes, Any, bool]:
        """Send a request. Returns the kind of the response, its result, and whether the process is about to exit.

        Raises IncompleteReadError, ConnectionError.
        """
        self._requests.writelines((HEAD.pack(TASK, len(request), len(content)), request, content))
        with suppress(ConnectionError):
            # A worker that cannot hold the content in memory responds and exits before it has read all of it.
            await self._requests.drain()
        kind, size, _ = HEAD.unpack(await self._answers.readexactly(HEAD.size))
        if size > MAX_BYTES:
            raise ConnectionError
        body = await self._answers.readexactly(size)
        answer, is_last = orjson.loads(body) if size < _LARGE_BYTES else await asyncio.to_thread(orjson.loads, body)
        return kind, answer, is_last

    def retire_after(self, seconds: float, retire: Any) -> None:
        """Call `retire` after this many seconds unless `cancel_retirement` is called first."""
        self._retirement = asyncio.get_running_loop().call_later(seconds, retire)

    def cancel_retirement(self) -> None:
        if self._retirement is not None:
            self._retirement.cancel()
            self._retirement = None

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until the process has exited and its pipes are closed."""
        # Drain the output first: asyncio does not detect the end of a pipe while its read buffer is full.
        with suppress(ConnectionError):
            while await self._answers.read(_BUFFER_BYTES):
                pass
        await self.process.wait()
        self._requests.close()


def _result(kind: bytes, answer: Any, task: Task) -> Any:
    if kind == RESULT:
        return answer
    if kind == REFUSED:
        name, code, message, details = answer
        raise errors.recreate_error(getattr(errors, name, QueryServerError), code, message, details)
    if kind == EXCEEDED:
        raise TooComplex("The call takes more memory than one call may use.")
    log.error("computation worker failed", task=task.value, failure=answer if kind == BROKEN else kind)
    raise RuntimeError(f"The task {task.value} failed.")


def computation_pool(settings: DesktopSettings) -> ComputationPool:
    return ComputationPool(
        processes=settings.computation_processes,
        time_s=settings.computation_timeout_s,
        memory_bytes=settings.computation_memory_bytes,
    )
