"""Access to a session's stored results from the engine process. All calls block; callable from any thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from queryserver.engines.process.channel import Content, Frame
from queryserver.engines.process.messages import columns_of
from queryserver.engines.reach import ResultPiece
from queryserver.formats.columns import Column

FILES_AT_ONCE = 32
"""Most descriptors in one reply."""


class ResultMethod(StrEnum):
    """The calls handled by `ResultRequests`."""

    OPEN = "open_result"
    FILES = "result_files"
    READ = "read_result"
    CLOSE = "close_result"


class Caller(Protocol):
    """`ServerCalls`, or a fake."""

    def call(self, session: int, method: str, arguments: Mapping[str, Any], content: Content = b"") -> Frame: ...


@dataclass(frozen=True, slots=True)
class CalledResults:
    """`StatementResults` of the session with number `session`; raises the same domain errors, and SessionLost."""

    caller: Caller
    session: int

    def open(self, operation_id: str) -> "CalledResult":
        """Open a result; the caller closes it."""
        message = self.caller.call(self.session, ResultMethod.OPEN, {"operation_id": operation_id}).message
        pieces = tuple(ResultPiece(rows, size_bytes) for rows, size_bytes in message["pieces"])
        return CalledResult(self, message["result"], columns_of(message["columns"]), pieces)


@dataclass(frozen=True, slots=True)
class CalledResult:
    """An open result, as `OpenResult`."""

    results: CalledResults
    number: int
    columns: tuple[Column, ...]
    pieces: tuple[ResultPiece, ...]

    def files(self, first: int) -> Sequence[int]:
        """Descriptors of at most `FILES_AT_ONCE` pieces from `first` on; the caller closes them.

        Empty if the pieces are not in local files.
        """
        return self._call(ResultMethod.FILES, first=first, count=FILES_AT_ONCE).descriptors

    def read(self, piece: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a piece, fewer at its end."""
        return self._call(ResultMethod.READ, piece=piece, start=start, stop=stop).content.to_pybytes()

    def close(self) -> None:
        self._call(ResultMethod.CLOSE)

    def _call(self, method: ResultMethod, **arguments: int) -> Frame:
        return self.results.caller.call(self.results.session, method, {"result": self.number, **arguments})
