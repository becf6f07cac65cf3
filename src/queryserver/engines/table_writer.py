"""What makes tables over a blocking driver."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from queryserver.engines.protocol import TableLoad, TableName
from queryserver.engines.threaded import DriverConnection


class TableWriter(ABC):
    """Makes tables over one connection. Called in a thread, one call at a time; raises EngineError only.

    A stop has an effect only while `allow_interrupt` says so.
    """

    def __init__(self, connection: DriverConnection) -> None:
        self._driver = connection
        self._ending = threading.Lock()
        self._may_interrupt = False

    @abstractmethod
    def exists(self, table: TableName) -> bool:
        """Whether there is a table or view of that name."""
        ...

    @abstractmethod
    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        """Make the table, or append. When it fails nothing is visible but, maybe, the staging table."""
        ...

    @abstractmethod
    def drop(self, table: TableName) -> None:
        """Drop a table if it is there."""
        ...

    def interrupt(self) -> None:
        """Stop `write`, unless it is already at its last step or undoes what it did. From any thread, at once."""
        with self._ending:
            if self._may_interrupt:
                self._driver.interrupt()

    def close(self) -> None:
        """Close the connection. Called once nothing runs. Idempotent."""
        self._driver.close()

    def allow_interrupt(self, *, is_allowed: bool) -> None:
        with self._ending:
            self._may_interrupt = is_allowed


class FeedStopped(Exception):
    """Raised into the thread that waits for batches of a load that has ended."""
