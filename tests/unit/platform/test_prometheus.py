"""Metrics, and their aggregation over worker processes."""

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from queryserver.platform.metrics import Metrics

_WORKER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from prometheus_client import CollectorRegistry, generate_latest
from queryserver.platform.metrics import Metrics
from queryserver.platform.metrics import MergedMetrics, counts_directory

registry = CollectorRegistry()
metrics = Metrics(registry, dialects=["hive"])
for _ in range(int(sys.argv[1])):
    metrics.statement_ended("hive", "available", 1.5)
metrics.connections.labels("used").set(int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
shown = CollectorRegistry()
shown.register(MergedMetrics(counts_directory(), registry))
print(generate_latest(shown).decode(), flush=True)
"""


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


@pytest.mark.platform(100)
def test_unknown_label_values_are_counted_as_other():
    registry = CollectorRegistry()
    metrics = Metrics(registry, dialects=["hive"])
    for number in range(3):
        metrics.statement_ended(f"made-up-{number}", "failed", 1)
        metrics.engine_failed(f"made-up-{number}", "engine_error")
        with metrics.engine_sessions(f"made-up-{number}").track_inprogress():
            pass
    text = page(registry)
    assert "made-up" not in text
    assert 'queryserver_statements_total{dialect="other",outcome="failed"} 3.0' in text


def test_open_sessions_and_uploads_are_counted():
    registry = CollectorRegistry()
    metrics = Metrics(registry, dialects=["hive"])
    sessions = metrics.engine_sessions("hive")
    with sessions.track_inprogress(), sessions.track_inprogress(), metrics.uploads.track_inprogress():
        text = page(registry)
        assert 'queryserver_engine_sessions{dialect="hive"} 2.0' in text
        assert "queryserver_uploads_active 1.0" in text
    text = page(registry)
    assert 'queryserver_engine_sessions{dialect="hive"} 0.0' in text
    assert "queryserver_uploads_active 0.0" in text


@pytest.mark.platform(100)
def test_worker_metrics_are_aggregated(tmp_path):
    """A worker's counters are kept after the worker has ended, but its gauges are dropped."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def worker(statements: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _WORKER, str(statements)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    with worker(2) as first, worker(3) as second, worker(4) as third:
        third.kill()
        third.wait(10)
        text, _ = first.communicate("\n", timeout=30)
        second.kill()
    assert 'queryserver_statements_total{dialect="hive",outcome="available"} 9.0' in text
    assert 'queryserver_db_pool_connections{state="used"} 5.0' in text
    # The metric is exported even before the first login.
    assert "# TYPE queryserver_logins_total counter" in text
    assert "# HELP queryserver_statement_seconds Time from" in text
