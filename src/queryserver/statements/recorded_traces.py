"""Records the spans of statements (Contract platform 9.6). Import this module only if tracing is on.

The process that commits the end of a statement records its span, from the record. The process that runs the statement
records the children. Both derive the same ids from the id of the statement. So a trace is complete even if several
processes took part, and the statements of a script are children of the script's span.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from uuid import UUID

from opentelemetry.trace import Span, SpanContext, SpanKind

from queryserver.connectors.model import Connector
from queryserver.connectors.urls import server_of
from queryserver.engines.protocol import StatementContext
from queryserver.platform.spans import (
    AttributeValue,
    SpanRecorder,
    mark_failed,
    parse_traceparent,
    span_context,
    traceparent_of,
)
from queryserver.results.segments import Segment
from queryserver.sql.summaries import summarize
from queryserver.statements.model import Assignment, Outcome, StatementEnd
from queryserver.statements.states import StatementState
from queryserver.statements.traces import NO_TRACE, StatementTrace, StatementTraces

_FAILED = frozenset({StatementState.FAILED, StatementState.TIMED_OUT})
_MAX_TEXT_CHARACTERS = 16 * 1024
_SYSTEMS = {
    "hplsql": "hive",
    "mssql": "microsoft.sql_server",
    "oracle": "oracle.db",
    "redshift": "aws.redshift",
    "sparksql": "spark",
}
"""Values of `db.system.name` that differ from the dialect."""


class RecordedTraces(StatementTraces):
    """Records the spans of sampled statements."""

    is_on = True

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._open: dict[UUID, RecordedTrace] = {}

    def begin(self, assignment: Assignment, connector: Connector | None) -> StatementTrace:
        claim = assignment.claim
        caller, trace_id = _trace(claim.operation_id or claim.statement_id, assignment.traceparent)
        if not self._recorder.is_sampled(caller, trace_id):
            return NO_TRACE
        parent = span_context(trace_id, _span_id(claim.statement_id))
        trace = RecordedTrace(
            self._recorder, parent, assignment, connector, lambda: self._open.pop(claim.statement_id, None)
        )
        self._open[claim.statement_id] = trace
        return trace

    def ended(self, end: StatementEnd) -> None:
        caller, trace_id = _trace(end.operation_id or end.id, end.traceparent)
        if not self._recorder.is_sampled(caller, trace_id):
            return
        if (trace := self._open.get(end.id)) is not None:
            trace.close()
        end_ns = time.time_ns()
        span = self._recorder.start(
            "script" if end.is_script else "statement",
            span_context(trace_id, _span_id(end.operation_id)) if end.operation_id else caller,
            start_ns=end_ns - round(end.lasted_s * 1e9),
            trace_id=trace_id,
            span_id=_span_id(end.id),
            kind=SpanKind.INTERNAL if end.operation_id else SpanKind.SERVER,
        )
        span.set_attributes(_end_attributes(end))
        if end.state in _FAILED:
            mark_failed(span, end.outcome)
        span.end(end_ns)


@dataclass(eq=False, repr=False)
class RecordedTrace(StatementTrace):
    """Records the steps of one statement as spans below `parent`, the span of the statement."""

    recorder: SpanRecorder
    parent: SpanContext
    assignment: Assignment
    connector: Connector | None
    on_close: Callable[[], object]
    _queue: Span | None = field(default=None, init=False)
    _source: Span | None = field(default=None, init=False)
    """The engine, or the stored result, that returns the rows."""
    _spool: Span | None = field(default=None, init=False)
    _store: Span | None = field(default=None, init=False)
    _uses_engine: bool = field(default=False, init=False)
    _segments: int = field(default=0, init=False)
    _stored_bytes: int = field(default=0, init=False)
    _storing_ns: int = field(default=0, init=False)
    _is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._uses_engine = self.assignment.source_operation is None
        if not self.assignment.sent:
            self._queue = self._start("queue", start_ns=round(self.assignment.recorded_at * 1e9))

    def engine_context(self, context: StatementContext) -> StatementContext:
        return replace(context, traceparent=traceparent_of(self._source)) if self._source is not None else context

    def sent(self) -> None:
        _end(self._queue)
        if self._source is not None:
            self._source.add_event("sent again")
        elif not self._is_closed:
            self._start_source()

    def uses_engine(self) -> None:
        self._uses_engine = True

    @contextmanager
    def reading(self) -> Generator[None]:
        if self._source is None:  # another process has sent the statement
            self._start_source()
        self._spool = self._start("spool")
        try:
            yield
        finally:
            _end(self._spool)

    @contextmanager
    def storing(self) -> Generator[None]:
        began = time.monotonic_ns()
        if self._store is None and not self._is_closed:
            self._store = self._start("store")
        try:
            yield
        finally:
            self._storing_ns += time.monotonic_ns() - began

    def stored(self, segment: Segment) -> None:
        self._segments += 1
        self._stored_bytes += segment.size_bytes

    def finished(self, outcome: Outcome) -> None:
        source = self._source
        if self._is_closed:
            return
        if source is not None and source.is_recording():
            if outcome.has_result_set:
                source.set_attribute("db.response.returned_rows", outcome.rows)
            if outcome.error_sqlstate:
                source.set_attribute("db.response.status_code", outcome.error_sqlstate)
            if outcome.state in _FAILED:
                mark_failed(source, outcome.error_sqlstate or outcome.error_code or outcome.state.value)
            source.end()
        if self._store is None and source is not None:
            self._store = self._start("store")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._store is not None:
            self._store.set_attributes(
                {
                    "queryserver.segments": self._segments,
                    "queryserver.stored_bytes": self._stored_bytes,
                    "queryserver.storing_s": round(self._storing_ns / 1e9, 6),
                }
            )
        for span in (self._queue, self._spool, self._source, self._store):
            _end(span)
        self.on_close()

    def _start(self, name: str, *, start_ns: int | None = None, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        return self.recorder.start(name, self.parent, start_ns=start_ns or time.time_ns(), kind=kind)

    def _start_source(self) -> None:
        if not self._uses_engine:
            self._source = self._start("stored result")
            return
        attributes = self._engine_attributes()
        name = attributes.get("db.query.summary") or attributes["db.system.name"]
        self._source = self._start(str(name), kind=SpanKind.CLIENT)
        self._source.set_attributes(attributes)

    def _engine_attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes of the stable conventions for database client spans."""
        assignment = self.assignment
        found: dict[str, AttributeValue] = {
            "db.system.name": _SYSTEMS.get(assignment.dialect, assignment.dialect),
            **_server_attributes(self.connector.options if self.connector else {}),
        }
        if assignment.database:
            found["db.namespace"] = assignment.database
        if assignment.import_plan is not None:  # `statement` is only a description
            return {**found, "db.operation.name": "IMPORT", "db.query.summary": "IMPORT"}
        summary = summarize(assignment.statement, assignment.dialect)
        if summary.operation:
            found["db.operation.name"], found["db.query.summary"] = summary.operation, summary.text
        if self.recorder.has_query_text:
            found["db.query.text"] = assignment.statement[:_MAX_TEXT_CHARACTERS]
        if assignment.resumption is not None:
            found["queryserver.resumed"] = True
        return found


def _end(span: Span | None) -> None:
    if span is not None and span.is_recording():  # the SDK warns if a span is ended twice
        span.end()


def _server_attributes(options: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return host, port and database of the connector's options. The options may also contain passwords."""
    found: dict[str, AttributeValue] = {}
    if (url := options.get("url")) is not None and (server := server_of(str(url))) is not None:
        host, port, path = server
        found["server.address"] = host
        if port is not None:
            found["server.port"] = port
        if path:
            found["db.namespace"] = path
    elif (host := str(options.get("server_host", ""))) and "," not in host:
        # With several hosts, the session chooses one.
        name, colon, port_text = host.rpartition(":")
        if not colon or host.endswith("]") or (":" in name and not name.endswith("]")):
            name, port_text = host, str(options.get("server_port", ""))
        found["server.address"] = name.strip("[]")
        if port_text.isdecimal():
            found["server.port"] = int(port_text)
    return found


def _end_attributes(end: StatementEnd) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "enduser.id": end.user,
        "queryserver.operation_id": str(end.operation_id or end.id),
        "queryserver.connector": end.connector,
        "queryserver.dialect": end.dialect,
        "queryserver.state": end.state.value,
        "queryserver.rows": end.rows,
        "queryserver.stored_bytes": end.size_bytes,
    }
    if end.operation_id is not None:
        found["queryserver.statement_id"] = str(end.id)
    if end.canceled_by:
        found["queryserver.canceled_by"] = end.canceled_by
    return found


def _trace(operation_id: UUID, traceparent: str | None) -> tuple[SpanContext | None, int]:
    """Return the caller's span, and the id of the trace: the caller's, or one derived from the operation's id."""
    caller = parse_traceparent(traceparent) if traceparent else None
    return caller, caller.trace_id if caller else _digest(b"trace", operation_id, 16)


def _span_id(statement_id: UUID) -> int:
    return _digest(b"span", statement_id, 8)


def _digest(purpose: bytes, statement_id: UUID, size: int) -> int:
    """Return a number of `size` bytes that does not reveal the id, and is evenly distributed, as samplers require."""
    return int.from_bytes(sha256(purpose + statement_id.bytes).digest()[:size]) or 1
