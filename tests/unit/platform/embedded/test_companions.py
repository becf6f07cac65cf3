"""The settings of the worker and beat processes that `serve --embedded --with-workers` starts."""

from pathlib import Path

from queryserver.platform.embedded.companions import fleet_environment, fleet_problems
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.settings.loader import read_settings
from queryserver.platform.settings.tree import Settings

BROKER = "redis://127.0.0.1:7000/0"


def test_worker_and_beat_do_not_share_a_metrics_port(tmp_path: Path):
    file = tmp_path / "queryserver.toml"
    file.write_text("[desktop.task_server]\nmetrics_port = 8889\nconcurrency = 3\n")
    given = {"queryserver__desktop__task_server__metrics_port": "8890", "PATH": "/bin"}
    environment = fleet_environment(given, BROKER)
    assert environment["PATH"] == "/bin"
    reading = read_settings(file, environment)
    assert reading.problems == []
    tasks = reading.settings.desktop.task_server
    assert (tasks.enabled, tasks.beat_enabled, tasks.broker_url.get_secret_value()) == (True, True, BROKER)
    assert (tasks.metrics_port, tasks.concurrency) == (0, 3)


def test_settings_that_workers_would_refuse_are_reported():
    assert fleet_problems(Settings()) == []
    short = Settings().model_copy(update={"editor": EditorSettings(lease_timeout_s=10)})
    assert fleet_problems(short) == ["desktop.task_server.heartbeat_s: exceeds a third of editor.lease_timeout_s."]
