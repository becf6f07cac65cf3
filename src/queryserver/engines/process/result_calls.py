"""The stored results that a session may read, called from its process. All of it blocks; any thread may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from queryserver.engines.process.channel import Content, Frame
from queryserver.engines.process.messages import columns_of
from queryserver.engines.reach import ResultPiece
from queryserver.formats.columns import Column

FILES_AT_ONCE = 32
"""Descriptors of one answer."""


class ResultMethod(StrEnum):
    """The calls that `ResultRequests` answers."""

    OPEN = "open_result"
    FILES = "result_files"
    READ = "read_result"
    CLOSE = "close_result"


class Caller(Protocol):
    """`ServerCalls`, or what stands for it."""

    def call(self, session: int, method: str, arguments: Mapping[str, Any], content: Content = b"") -> Frame: ...


@dataclass(frozen=True, slots=True)
class CalledResults:
    """As `StatementResults`, of the session of that number; raises the same domain errors, and SessionLost."""

    caller: Caller
    session: int

    def open(self, operation_id: str) -> "CalledResult":
        """To be closed by the caller."""
        message = self.caller.call(self.session, ResultMethod.OPEN, {"operation_id": operation_id}).message
        pieces = tuple(ResultPiece(rows, size_bytes) for rows, size_bytes in message["pieces"])
        return CalledResult(self, message["result"], columns_of(message["columns"]), pieces)


@dataclass(frozen=True, slots=True)
class CalledResult:
    """As `OpenResult`."""

    results: CalledResults
    number: int
    columns: tuple[Column, ...]
    pieces: tuple[ResultPiece, ...]

    def files(self, first: int) -> Sequence[int]:
        """Descriptors of the pieces from `first` on, at most `FILES_AT_ONCE`; the caller closes them.

        None at all: the pieces are in no files of this machine.
        """
        return self._call(ResultMethod.FILES, first=first, count=FILES_AT_ONCE).descriptors

    def read(self, piece: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a piece, fewer where it is shorter."""
        return self._call(ResultMethod.READ, piece=piece, start=start, stop=stop).content.to_pybytes()

    def close(self) -> None:
        self._call(ResultMethod.CLOSE)

    def _call(self, method: ResultMethod, **arguments: int) -> Frame:
        return self.results.caller.call(self.results.session, method, {"result": self.number, **arguments})
