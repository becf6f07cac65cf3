"""Creates tables through a blocking driver."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from queryserver.engines.protocol import TableLoad, TableName
from queryserver.engines.threaded import DriverConnection


class TableWriter(ABC):
    """Creates tables over one connection. Called in a thread, one call at a time. Only raises EngineError.

    `interrupt` has an effect only while `allow_interrupt` permits it.
    """

    def __init__(self, connection: DriverConnection) -> None:
        self._driver = connection
        self._interrupt_lock = threading.Lock()
        self._may_interrupt = False

    @abstractmethod
    def exists(self, table: TableName) -> bool:
        """Whether a table or view with that name exists."""
        ...

    @abstractmethod
    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        """Create or append to the table. A failure leaves nothing visible, except perhaps the staging table."""
        ...

    @abstractmethod
    def drop(self, table: TableName) -> None:
        """Drop a table if it exists."""
        ...

    def interrupt(self) -> None:
        """Stop `write`, unless it performs its last step or rolls back.

        Callable from any thread. Returns immediately.
        """
        with self._interrupt_lock:
            if self._may_interrupt:
                self._driver.interrupt()

    def close(self) -> None:
        """Close the connection. Called when no call is in progress. Idempotent."""
        self._driver.close()

    def allow_interrupt(self, *, is_allowed: bool) -> None:
        with self._interrupt_lock:
            self._may_interrupt = is_allowed


class FeedStopped(Exception):
    """The load has ended. Raised in the thread that waits for its batches."""
