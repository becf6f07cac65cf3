"""Exports spans to an OpenTelemetry collector. Import this module only if tracing is on: it loads the SDK (0.1 s)."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from uuid import uuid4

import structlog
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from queryserver import __version__
from queryserver.platform.settings.traces import TracingSettings
from queryserver.platform.shutdown import SPANS_EXPORTED_WITHIN_S, stop_step

log = structlog.get_logger(__name__)

AttributeValue: TypeAlias = str | int | float | bool

_MAX_WAITING_SPANS = 8192
"""Spans of ended statements beyond this number are dropped. A span takes about 2 KB."""
_BATCH_SPANS = 512
_EXPORT_EVERY_S = 2.0


class SpanRecorder:
    """Creates spans whose trace id and span id may be given, and exports them in a thread of its own.

    Call it only from the event loop.
    """

    def __init__(self, settings: TracingSettings, *, role: str = "") -> None:
        """Start the export thread. `role` is the role of this process."""
        self.has_query_text = settings.query_text
        self._exporter = OTLPSpanExporter(
            endpoint=settings.url,
            certificate_file=str(settings.otlp_ca) if settings.otlp_ca else None,
            headers=settings.headers,
            timeout=settings.timeout_s,
            compression=Compression.Gzip,
        )
        self._sampler = ParentBased(TraceIdRatioBased(settings.sample_percent / 100))
        self._ids = _GivenIds()
        attributes = {
            "service.name": settings.service_name,
            "service.version": __version__,
            "service.instance.id": str(uuid4()),
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            "queryserver.role": role,
        }
        # Neither global nor closed by an exit handler: `open_span_recorder` closes it.
        self._provider = TracerProvider(
            sampler=self._sampler, resource=Resource.create(attributes), shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _ReportingExporter(self._exporter, settings.url),
                max_queue_size=_MAX_WAITING_SPANS,
                schedule_delay_millis=_EXPORT_EVERY_S * 1000,
                max_export_batch_size=_BATCH_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer("queryserver", __version__)

    def is_sampled(self, caller: SpanContext | None, trace_id: int) -> bool:
        """Return whether the trace is recorded: as the caller decided, otherwise by the share of traces."""
        parent = set_span_in_context(NonRecordingSpan(caller)) if caller is not None else None
        return self._sampler.should_sample(parent, trace_id, "").decision.is_sampled()

    def start(
        self,
        name: str,
        parent: SpanContext | None,
        *,
        start_ns: int,
        trace_id: int | None = None,
        span_id: int | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Start a span. `trace_id` is used if there is no parent; ids that are None are random."""
        context = set_span_in_context(NonRecordingSpan(parent)) if parent is not None else set_span_in_context(_NO_SPAN)
        self._ids.trace_id, self._ids.span_id = trace_id, span_id
        try:
            return self._tracer.start_span(name, context, kind=kind, start_time=start_ns)
        finally:
            self._ids.trace_id = self._ids.span_id = None

    async def aclose(self, *, within_s: float) -> None:
        """Export the waiting spans within the time limit, and stop the export thread."""
        # The SDK waits for its thread without a limit that callers can set, so this waits in a thread that is not
        # joined when the process exits.
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed, because this took too long
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="tracing-close", daemon=True).start()
        try:
            async with asyncio.timeout(within_s):
                await closed.wait()
        except TimeoutError:
            self._exporter.shutdown()  # stops the retries of the export that is in progress
            log.warning("some spans were not exported before the process stopped")


_NO_SPAN = NonRecordingSpan(SpanContext(0, 0, is_remote=False))


@asynccontextmanager
async def open_span_recorder(settings: TracingSettings, *, role: str = "") -> AsyncGenerator[SpanRecorder]:
    """Start the export of spans. On exit, export the waiting ones within a time limit."""
    # The SDK logs each attempt. `_ReportingExporter` logs failures once.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    recorder = SpanRecorder(settings, role=role)
    try:
        yield recorder
    finally:
        with stop_step("spans are exported", within_s=SPANS_EXPORTED_WITHIN_S):
            await recorder.aclose(within_s=SPANS_EXPORTED_WITHIN_S)


def span_context(trace_id: int, span_id: int, *, is_sampled: bool = True) -> SpanContext:
    """Return the context of a span that this or another process records."""
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)


def parse_traceparent(traceparent: str) -> SpanContext:
    """Return the span context of a valid W3C `traceparent` of version 00."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return span_context(int(trace_id, 16), int(span_id, 16), is_sampled=bool(int(flags, 16) & TraceFlags.SAMPLED))


def traceparent_of(span: Span) -> str:
    """Return the W3C `traceparent` for a call that is part of the span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & TraceFlags.SAMPLED:02x}"


def mark_failed(span: Span, error_type: str) -> None:
    """Mark the span as failed. It gets no message, because messages may quote the statement."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


class _GivenIds(RandomIdGenerator):
    """Generates random ids, unless an id is set for the span that is started next."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_trace_id(self) -> int:
        return self.trace_id or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.span_id or super().generate_span_id()


class _ReportingExporter(SpanExporter):
    """Logs the first of several failed exports, and the first success after them. Called in the export thread."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._url = url
        self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed and not self._has_failed:
            log.warning("spans could not be exported and were dropped", endpoint=self._url, spans=len(spans))
        elif self._has_failed and not has_failed:
            log.info("spans are exported again", endpoint=self._url)
        self._has_failed = has_failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
