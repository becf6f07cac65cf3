"""The export of spans: settings, failures of the collector, and the end of the process."""

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs
from tests.fakes.collector import running_collector
from tests.timing import until

from queryserver.platform import spans as module
from queryserver.platform.settings.traces import TracingSettings
from queryserver.platform.spans import SpanRecorder, open_span_recorder, span_context

PARENT = span_context(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
REFUSED = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def prompt_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EXPORT_EVERY_S", 0.05)


def record(recorder: SpanRecorder, name: str = "statement", parent: object = PARENT) -> None:
    now = time.time_ns()
    span = recorder.start(name, parent, start_ns=now)  # type: ignore[arg-type]
    span.end(now)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("", ""),
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://otlp.example.org/base", "https://otlp.example.org/base/v1/traces"),
        ("https://otlp.example.org/v1/traces", "https://otlp.example.org/v1/traces"),
    ],
)
def test_the_path_of_the_receiver_is_appended_once(endpoint: str, url: str) -> None:
    assert TracingSettings(otlp_endpoint=endpoint).url == url


@pytest.mark.parametrize(
    "changes",
    [
        {"otlp_endpoint": "localhost:4318"},
        {"otlp_endpoint": "grpc://localhost:4317"},
        {"otlp_endpoint": "http://user:planted@localhost:4318"},
        {"otlp_endpoint": "http://localhost:99999"},
        {"otlp_headers": "planted"},
        {"otlp_headers": "a="},
        {"otlp_headers": ["a=b\r\nc: d"]},
        {"sample_percent": 101},
        {"service_name": ""},
    ],
)
def test_invalid_settings_are_refused_without_quoting_them(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        TracingSettings.model_validate(changes)
    assert "planted" not in str(refused.value)


async def test_exports_carry_the_headers_and_the_name_of_the_service() -> None:
    async with running_collector() as collector:
        settings = TracingSettings(
            otlp_endpoint=collector.url,
            otlp_headers=(SecretStr("Authorization=Bearer planted"), SecretStr("X-Tenant=a")),
            service_name="sql",
        )
        assert "planted" not in repr(settings)
        async with open_span_recorder(settings) as recorder:
            record(recorder)
            span = await collector.named("statement")
    assert (span.service, span.trace_id, span.parent) == ("sql", f"{PARENT.trace_id:032x}", f"{PARENT.span_id:016x}")
    assert collector.headers[0]["authorization"] == "Bearer planted"
    assert collector.headers[0]["x-tenant"] == "a"


async def test_waiting_spans_are_exported_when_the_process_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EXPORT_EVERY_S", 3600.0)
    async with running_collector() as collector:
        async with open_span_recorder(TracingSettings(otlp_endpoint=collector.url)) as recorder:
            record(recorder)
        assert [one.name for one in collector.spans] == ["statement"]


async def test_a_collector_that_is_down_is_reported_once() -> None:
    with capture_logs() as logged:
        async with open_span_recorder(TracingSettings(otlp_endpoint=REFUSED, timeout_s=1)) as recorder:
            for _ in range(3):
                record(recorder)
                await asyncio.sleep(0.3)
            await until(lambda: _warnings(logged))
    assert len(_warnings(logged)) == 1


def _warnings(logged: list, url: str = REFUSED) -> list[str]:
    """The warnings about one collector. Threads of earlier tests may still give up theirs."""
    return [one["event"] for one in logged if one["log_level"] == "warning" and one.get("endpoint", "").startswith(url)]


async def test_a_recovered_collector_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with capture_logs() as logged, caplog.at_level(logging.DEBUG, "opentelemetry"):
        async with running_collector() as collector:
            collector.status = 400
            async with open_span_recorder(TracingSettings(otlp_endpoint=collector.url)) as recorder:
                record(recorder, "lost")
                await until(lambda: _warnings(logged, collector.url))
                collector.status = 200
                record(recorder, "kept")
                await collector.named("kept")
                await until(lambda: any(one["event"] == "spans are exported again" for one in logged))
        assert [one.name for one in collector.spans] == ["kept"]
    assert not [one for one in caplog.records if one.name.startswith("opentelemetry.exporter")]


async def test_a_collector_that_hangs_delays_the_end_only_for_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS_EXPORTED_WITHIN_S", 0.5)
    async with running_collector() as collector:
        collector.hangs = True
        opened = open_span_recorder(TracingSettings(otlp_endpoint=collector.url, timeout_s=30))
        record(await opened.__aenter__())
        began = time.monotonic()
        await opened.__aexit__(None, None, None)
        assert time.monotonic() - began < 5


async def test_recording_never_waits_and_keeps_a_limited_number_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS_EXPORTED_WITHIN_S", 0.1)
    monkeypatch.setattr(module, "_MAX_WAITING_SPANS", 1000)
    async with running_collector() as collector:
        collector.hangs = True
        async with open_span_recorder(TracingSettings(otlp_endpoint=collector.url, timeout_s=1)) as recorder:
            for _ in range(3000):
                record(recorder)
            waiting = recorder._provider._active_span_processor._span_processors[0]._batch_processor._queue  # type: ignore[attr-defined]
            assert len(waiting) <= 1000


@pytest.mark.parametrize(("percent", "expected"), [(0, False), (100, True)])
async def test_the_share_of_traces_applies_unless_the_caller_has_decided(percent: int, *, expected: bool) -> None:
    async with open_span_recorder(
        TracingSettings(otlp_endpoint=REFUSED, sample_percent=percent, timeout_s=1)
    ) as recorder:
        assert recorder.is_sampled(None, 2**100 + 12345) is expected
        assert recorder.is_sampled(span_context(1, 2, is_sampled=True), 1)
        assert not recorder.is_sampled(span_context(1, 2, is_sampled=False), 1)


def test_the_sdk_is_not_loaded_unless_tracing_is_on() -> None:
    code = "import sys, queryserver.main, queryserver.worker; sys.exit('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parent, timeout=120)
    assert done.returncode == 0
