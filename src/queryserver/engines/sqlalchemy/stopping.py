"""How a call into a driver that nobody knows is stopped from another thread.

In this order: the engine's own KILL from a second connection, the driver's `cancel` or `interrupt`, and where there is
none, or nothing helps, the end of the socket: then the session is lost, and the engine notices by itself.
"""

import socket
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, Protocol

import sqlalchemy as sa

from queryserver.engines.sqlalchemy.errors import DRIVER_ERRORS
from queryserver.network.addresses import AddressRules
from queryserver.network.guarding import guarded

SPEAKS_MYSQL = frozenset({"mysql", "mariadb"})
_PATIENCE_S = 3.0
"""How long the gentler ways may take."""

_KILL_S = 5.0


class Stopper(Protocol):
    """Stops what runs on one connection."""

    def press(self) -> None:
        """Stop the call under way; returns at once, may be called again and again."""
        ...

    def settle(self) -> None:
        """Returns once no stop is on its way any more, so that the next statement is not met by it."""
        ...


class ConnectionStopper:
    """A Stopper for one DBAPI connection. `current_cursor` gives the cursor in use."""

    def __init__(
        self,
        engine: sa.Engine,
        connection: Any,
        current_cursor: Callable[[], Any],
        executor: Executor,
        rules: AddressRules,
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._connection = connection
        self._current_cursor = current_cursor
        self._executor = executor
        self._stopping: Future[None] | None = None
        self._began = 0.0
        self._is_cut = False

    def press(self) -> None:
        """See Stopper."""
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began > _PATIENCE_S:
            self._cut()
        elif self._stopping is None or self._stopping.done():
            self._stopping = self._executor.submit(self._stop)

    def settle(self) -> None:
        """See Stopper."""
        if self._stopping is not None:
            with suppress(TimeoutError):
                self._stopping.result(_KILL_S)
        self._stopping, self._began = None, 0.0

    def _stop(self) -> None:
        with guarded(self._rules), suppress(*DRIVER_ERRORS):
            if self._engine.dialect.name in SPEAKS_MYSQL:
                self._kill(int(self._connection.thread_id()))
                return
            for owner in (self._connection, self._current_cursor()):
                for name in ("cancel", "interrupt"):
                    if callable(method := getattr(owner, name, None)):
                        method()
                        return
            self._cut()

    def _kill(self, number: int) -> None:
        with self._engine.connect() as second:
            second.exec_driver_sql(f"KILL QUERY {number:d}")

    def _cut(self) -> None:
        """Shut the socket down under the driver: it comes back with an error of its own."""
        if self._is_cut:
            return
        self._is_cut = True
        for owner in (self._connection, getattr(self._connection, "connection", None)):
            for name in ("_sock", "sock", "socket"):
                found = getattr(owner, name, None)
                if isinstance(found, socket.socket):
                    with suppress(OSError):
                        found.shutdown(socket.SHUT_RDWR)
                    return
