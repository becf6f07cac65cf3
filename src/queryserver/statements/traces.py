"""The steps of statements that tracing records (Contract platform 9.6). These classes record nothing.

`statements/recorded_traces.py` records them. It is loaded only if tracing is on.
"""

from collections.abc import Generator
from contextlib import contextmanager

from queryserver.connectors.model import Connector
from queryserver.engines.protocol import StatementContext
from queryserver.results.segments import Segment
from queryserver.statements.model import Assignment, Outcome, StatementEnd


class StatementTrace:
    """Receives the steps of one statement from the process that runs it."""

    def engine_context(self, context: StatementContext) -> StatementContext:
        """Return the context with the trace that the engine may continue."""
        return context

    def sent(self) -> None:
        """The statement is about to be sent to the engine, perhaps again."""

    def uses_engine(self) -> None:
        """The engine answers the statement, because the stored result that it was to reuse cannot be read."""

    @contextmanager
    def reading(self) -> Generator[None]:
        """Rows are read and collected into segments inside the block."""
        yield

    @contextmanager
    def storing(self) -> Generator[None]:
        """A segment is made durable and visible inside the block."""
        yield

    def stored(self, segment: Segment) -> None:
        """The segment is durable."""

    def finished(self, outcome: Outcome) -> None:
        """The outcome is known, and is about to be recorded."""

    def close(self) -> None:
        """This process no longer works on the statement."""


class StatementTraces:
    """Creates the traces of statements. Called only from the event loop."""

    is_on = False

    def begin(self, assignment: Assignment, connector: Connector | None) -> StatementTrace:  # noqa: ARG002
        """Return the trace of a claimed statement. `connector` is None if it was deleted."""
        return NO_TRACE

    def ended(self, end: StatementEnd) -> None:
        """Receive the end of a statement, or of a script's operation, that this process has committed."""


NO_TRACE = StatementTrace()
NO_TRACES = StatementTraces()
