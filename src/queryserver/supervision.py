"""Several processes that serve one port, each started again when it ends.

Uvicorn's own supervisor stops the whole server when one worker cannot start: it takes the cause for one that stays.
Here that holds until a worker has served. From then on the settings are known to be good, and the cause is most likely
a database that is away for a while.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe, parent_process
from socket import socket
from threading import Thread
from typing import cast

import structlog
from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from queryserver.domain.errors.base import ConfigurationError, DatabaseUnavailable, QueryServerError, SchemaMismatch

log = structlog.get_logger(__name__)

Serve = Callable[[list[socket], Callable[[], None]], None]
"""Serves on the sockets until told to stop; calls its second argument once it does. To be found by name: it is what a
new process runs. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable when it cannot start."""

_LONGEST_PAUSE_S = 30.0
_SUCCESSOR_S = 60.0
_GIVEN_UP_S = 10.0
_LOOK_EVERY_S = 0.1
_STOPS = frozenset({signal.SIGINT, signal.SIGTERM})


def pause_s(failures: int) -> float:
    """How long to wait after so many starts in a row that failed: 1 s, then twice as long each time, up to 30 s."""
    return min(2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_S)


class Worker(Process):
    """One process that serves. It tells its parent when it does, or why it cannot."""

    def __init__(self, config: Config, sockets: list[socket], serve: Serve, *, failures: int = 0) -> None:
        super().__init__(config, sockets)
        self._serve = serve
        self._news, self._tell = Pipe(duplex=False)
        self._serves = False
        self._refusal: QueryServerError | None = None
        self.failures = failures
        """Starts in a row that failed at its place."""
        self.replace_at: float | None = None
        """When another takes its place; None while it runs."""
        self.is_greeted = False
        """Whether the log says that it serves."""

    def target(self, sockets: list[socket] | None = None) -> None:
        """See uvicorn. What the new process does."""
        signal.signal(signal.SIGTERM, self._give_up)
        Thread(target=self.always_pong, daemon=True).start()
        Thread(target=_end_with_parent, daemon=True).start()
        try:
            self._serve(sockets or [], self._begin)
        except (ConfigurationError, SchemaMismatch, DatabaseUnavailable) as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
            self._tell.send(_remade(error))
            sys.exit(STARTUP_FAILURE)

    def _begin(self) -> None:
        self._serves = True
        self._tell.send(None)

    def _give_up(self, *_: object) -> None:
        """Told to stop before uvicorn listens for it: what is half opened is closed. Later it is closing anyway."""
        if not self._serves:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # often told twice, by the parent and by whoever told that
            raise KeyboardInterrupt

    def serves(self) -> bool:
        """Whether it has begun to serve, as far as the parent has heard."""
        self._hear()
        return self._serves

    def refusal(self) -> QueryServerError | None:
        """Why it could not start; None when it has not said so."""
        self._hear()
        return self._refusal

    def is_well(self, timeout_s: float) -> bool:
        """Whether it runs, and answers if it serves. One that starts is busy importing and could not answer."""
        return self.is_alive(timeout_s) if self.serves() else self.process.is_alive()

    def _hear(self) -> None:
        try:
            while self._news.poll():
                made = self._news.recv()
                self._serves = self._serves or made is None
                self._refusal = made and made()
        except (EOFError, OSError):  # it died while it spoke
            return


class Supervisor(Multiprocess):
    """Keeps `config.workers` processes serving on one socket. To be run in the main thread.

    `began` is called once, when the first of them serves.
    """

    def __init__(self, config: Config, listener: socket, serve: Serve, began: Callable[[], None]) -> None:
        super().__init__(config, [listener])
        self._serve = serve
        self._began = began
        self._has_served = False
        self._failed: Worker | None = None
        self._workers: list[Worker] = []
        self.processes = cast("list[Process]", self._workers)  # one list: only ours get into it

    def run(self) -> None:
        """Until told to stop. Raises what kept the workers from starting, or SystemExit, when none has ever served."""
        try:
            super().run()
        except BaseException:  # the workers must not outlive their parent
            self.terminate_all()
            self.join_all()
            raise
        if self._failed is None:
            return
        if (refusal := self._failed.refusal()) is not None:
            raise refusal
        # A signal that ended it gives a negative number, which is no exit code.
        sys.exit(max(self._failed.exitcode or 0, 1))

    def init_processes(self) -> None:
        """See uvicorn."""
        for _ in range(self.processes_num):
            self._workers.append(self._start())

    def join_all(self) -> None:
        """See uvicorn. A further signal to stop is passed on: it ends the delay before the stop."""
        self.signal_queue.clear()
        # With ours open, connections would wait for an answer after the last worker has closed its own.
        for listener in self.sockets:
            listener.close()
        while any(worker.process.is_alive() for worker in self._workers):
            signals, self.signal_queue = self.signal_queue, []
            if not _STOPS.isdisjoint(signals):
                self.terminate_all()
            time.sleep(_LOOK_EVERY_S)
        super().join_all()

    def keep_subprocess_alive(self) -> None:
        """See uvicorn. Returns soon: it never waits for a pause."""
        if self.should_exit.is_set():
            return
        for worker in self._workers:
            self._greet(worker)
        for place, worker in enumerate(self._workers):
            if worker.replace_at is None:
                self._look_at(worker)
            if self.should_exit.is_set():
                return
            if worker.replace_at is not None and worker.replace_at <= time.monotonic():
                self._replace(place, worker)

    def restart_all(self) -> None:
        """See uvicorn: each is stopped once its successor serves. Any further signal ends this."""
        for place, old in enumerate(self._workers):
            if self.should_exit.is_set():
                return
            new = self._start()
            if not self._comes_up(new):
                self._end(new)
                log.error("workers_not_replaced", pid=new.pid, kept=old.pid, reason=_reason(new))
                return
            old.terminate()
            old.join()
            self._workers[place] = new

    def handle_ttin(self) -> None:
        """See uvicorn: one more."""
        self.processes_num += 1
        self._workers.append(self._start())

    def _replace(self, place: int, worker: Worker) -> None:
        try:
            self._workers[place] = self._start(worker.failures)
        except OSError as error:  # no memory, or too many processes: as passing as a database that is away
            self._try_later(worker, f"No process could be made: {error.strerror}.")

    def _start(self, failures: int = 0) -> Worker:
        worker = Worker(self.config, self.sockets, self._serve, failures=failures)
        worker.start()
        return worker

    def _greet(self, worker: Worker) -> None:
        if not worker.is_greeted and worker.serves():
            worker.is_greeted = True
            if not self._has_served:
                self._has_served = True
                self._began()
            log.info("worker_serves", pid=worker.pid, failed_starts=worker.failures)

    def _look_at(self, worker: Worker) -> None:
        if worker.is_well(self.config.timeout_worker_healthcheck):
            return
        worker.kill()  # one that hangs is still there
        worker.join()
        if worker.serves():
            log.warning("worker_ended", pid=worker.pid, exit_code=worker.exitcode)
            worker.failures = 0
            worker.replace_at = time.monotonic()
        elif self._has_served:
            self._try_later(worker, _reason(worker))
        else:
            self._failed = worker
            if worker.refusal() is None:  # else whoever runs this says it
                log.error("worker_not_started", pid=worker.pid, reason=_reason(worker))
            self.should_exit.set()

    def _try_later(self, worker: Worker, reason: str) -> None:
        worker.failures += 1
        wait = pause_s(worker.failures)
        worker.replace_at = time.monotonic() + wait
        log.error("worker_not_started", pid=worker.pid, reason=reason, again_in_s=wait)

    def _end(self, worker: Worker) -> None:
        """It may hold leases by now, which it gives back if it has the time."""
        worker.terminate()
        worker.process.join(_GIVEN_UP_S)
        worker.kill()
        worker.join()

    def _comes_up(self, worker: Worker) -> bool:
        end = time.monotonic() + _SUCCESSOR_S
        while not worker.serves():
            if time.monotonic() >= end or not worker.process.is_alive() or self.signal_queue:
                return False
            time.sleep(0.1)
        return True


def _reason(worker: Worker) -> str:
    """Why it does not serve."""
    refusal = worker.refusal()
    return refusal.message if refusal else f"It ended with {worker.exitcode}."


def _end_with_parent() -> None:
    """Nobody would replace or stop the workers of a parent that was killed, and they keep its port."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _remade(error: ConfigurationError | SchemaMismatch | DatabaseUnavailable) -> Callable[[], QueryServerError]:
    """What makes it anew in another process: exceptions with arguments of their own cannot be sent."""
    match error:
        case ConfigurationError():
            return partial(ConfigurationError, error.problems)
        case SchemaMismatch():
            return partial(SchemaMismatch, error.message)
        case DatabaseUnavailable():
            return DatabaseUnavailable
