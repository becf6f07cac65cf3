"""Prometheus and docker-compose accept their files in `deploy/`, and every alert fires when it should."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deploy.proxies import DEPLOY
from tests.engines.servers import require


def output(engine: str, program: str, *arguments: str | Path, **environment: str) -> str:
    """Run a program in its directory below `deploy/`; return its output. Fails if the program does."""
    found = shutil.which(program)
    command = [require(Path(found) if found else None, engine), *arguments]
    kind = {"promtool": "prometheus"}.get(engine, engine)
    done = subprocess.run(
        command, cwd=DEPLOY / kind, env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.engine("promtool")
def test_prometheus_parses_its_files_and_each_alert_fires():
    assert "16 rules found" in output("promtool", "promtool", "check", "rules", "alerts.yml")
    assert "SUCCESS" in output("promtool", "promtool", "test", "rules", "alerts.test.yml")
    for name in ("prometheus.yml", "kubernetes.yml"):
        output("promtool", "promtool", "check", "config", "--syntax-only", name)


@pytest.mark.engine("promtool")
def test_prometheus_parses_dashboard_expressions(tmp_path: Path):
    panels = json.loads((DEPLOY / "grafana" / "queryserver.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [
        {"record": f"panel:{number}", "expr": one.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, one in enumerate(expressions)
    ]
    assert len(rules) > 30
    file = tmp_path / "panels.json"
    # JSON is valid YAML.
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in output("promtool", "promtool", "check", "rules", file)


@pytest.mark.engine("compose")
def test_docker_compose_parses_its_file():
    output("compose", "docker-compose", "config", "--quiet")
    services = output("compose", "docker-compose", "config", "--services", QUERYSERVER_IMAGE="queryserver:0.1.0")
    assert set(services.split()) == {
        *("database", "broker", "migrate", "queryserver-1", "queryserver-2", "worker", "beat", "proxy")
    }
