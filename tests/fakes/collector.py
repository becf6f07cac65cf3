"""An OpenTelemetry collector on loopback that keeps the spans it receives by OTLP/HTTP."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.timing import until


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector received it. Ids are hexadecimal; `parent` is empty for a root."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    failed: bool
    message: str
    service: str
    role: str

    @classmethod
    def of(cls, span: Span, resource: Mapping[str, Any]) -> "ReceivedSpan":
        return cls(
            name=span.name,
            kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=_attributes(span.attributes),
            failed=span.status.code == 2,
            message=span.status.message,
            service=resource.get("service.name", ""),
            role=resource.get("queryserver.role", ""),
        )


@dataclass
class Collector:
    """Keeps received spans and the headers of each export. While `status` is not 200, it keeps nothing."""

    url: str = ""
    status: int = 200
    hangs: bool = False
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _closing: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _connections: set[asyncio.StreamWriter] = field(default_factory=set, init=False)

    async def named(self, name: str) -> ReceivedSpan:
        """Wait for a span with this name, and return the latest."""
        await until(lambda: any(one.name == name for one in self.spans))
        return next(one for one in reversed(self.spans) if one.name == name)

    def below(self, parent: ReceivedSpan) -> dict[str, ReceivedSpan]:
        """Return the children of a span by name, in the order of their start."""
        found = [one for one in self.spans if one.parent == parent.span_id and one.trace_id == parent.trace_id]
        return {one.name: one for one in sorted(found, key=lambda one: one.start_ns)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                if self.hangs:
                    await self._closing.wait()
                    return
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                headers = {name.lower(): value for name, value in headers.items()}
                body = await reader.readexactly(int(headers["content-length"]))
                assert head.startswith("POST /v1/traces "), head
                if self.status == 200:
                    self._keep(headers, body)
                writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def aclose(self) -> None:
        """Close all connections, also those whose call hangs."""
        self._closing.set()
        for connection in list(self._connections):
            connection.close()
        while self._connections:  # noqa: ASYNC110 no event reports this state
            await asyncio.sleep(0.01)

    def _keep(self, headers: Mapping[str, str], body: bytes) -> None:
        content = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.headers.append(headers)
        self.bodies.append(content)
        for part in ExportTraceServiceRequest.FromString(content).resource_spans:
            resource = _attributes(part.resource.attributes)
            for scope in part.scope_spans:
                self.spans += [ReceivedSpan.of(span, resource) for span in scope.spans]


def _attributes(found: Iterable[KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in found}


def _value(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    server = await asyncio.start_server(collector.serve, "127.0.0.1", 0)
    try:
        collector.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield collector
    finally:
        server.close()
        await collector.aclose()
