"""The commands `worker` and `beat`, which run the task server's processes (Contract platform 10, 12)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queryserver.cli.context import ConfigFile, set_setting, with_running_database
from queryserver.errors.base import ConfigurationError
from queryserver.platform.memory import let_arrow_use_the_common_heap
from queryserver.platform.settings.loader import load_settings

if TYPE_CHECKING:
    from queryserver.platform.settings.tree import Settings

app = typer.Typer()

MetricsPort = Annotated[int | None, typer.Option(help="Port of its metrics; 0: none.", min=0, max=65535)]
WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True, help="End when standard input is closed, too.")]


@app.command("worker")
def worker(
    config: ConfigFile = None,
    concurrency: Annotated[int | None, typer.Option(help="Statements that it runs at once.", min=1)] = None,
    metrics_port: MetricsPort = None,
    with_parent: WithParent = False,
) -> None:
    """Run statements and tasks of the task server, until the stop signal."""
    let_arrow_use_the_common_heap()
    set_setting("desktop__task_server__concurrency", concurrency)
    set_setting("desktop__task_server__metrics_port", metrics_port)
    settings = _settings(config, "worker", "enabled")
    from queryserver.worker import run_worker  # noqa: PLC0415 half a second that other commands need not wait

    run_worker(settings, with_parent=with_parent)


@app.command("beat")
def beat(config: ConfigFile = None, metrics_port: MetricsPort = None, with_parent: WithParent = False) -> None:
    """Fire the schedules. Several may run at once; each fire runs once."""
    let_arrow_use_the_common_heap()
    set_setting("desktop__task_server__metrics_port", metrics_port)
    settings = _settings(config, "beat", "enabled", "beat_enabled")
    from queryserver.worker import run_beat  # noqa: PLC0415 half a second that other commands need not wait

    run_beat(settings, with_parent=with_parent)


def _settings(config: Path | None, command: str, *needed: str) -> "Settings":
    """Load the settings and configure logging as for servers. Raises ConfigurationError if the task server is off."""
    from queryserver.platform.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    settings = load_settings(config, os.environ)
    problems = [
        f"desktop.task_server.{name}: is false, and `queryserver {command}` needs it."
        for name in needed
        if not getattr(settings.desktop.task_server, name)
    ]
    if problems:
        raise ConfigurationError(problems)
    configure_logging(settings.desktop.logging)
    return with_running_database(settings)
