"""`queryserver beat`: the process that fires the schedules (Contract platform 10.4, 12)."""

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import typer

from queryserver.cli.context import ConfigFile, run
from queryserver.cli.serving import let_arrow_use_the_common_heap
from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loading import load_settings

if TYPE_CHECKING:
    from queryserver.platform.settings.tree import Settings

app = typer.Typer()


@app.command("beat")
def beat(config: ConfigFile = None) -> None:
    """Fire the schedules. Several may run; each fire runs once."""
    let_arrow_use_the_common_heap()
    from queryserver.platform.embedded.cluster import EmbeddedPostgresError  # noqa: PLC0415 most commands need it not
    from queryserver.platform.embedded.postgres import running_defaults, with_defaults  # noqa: PLC0415 as above
    from queryserver.platform.logs import configure_logging  # noqa: PLC0415 only commands that do something log

    settings = load_settings(config, os.environ)
    _require_switched_on(settings)
    configure_logging(settings.desktop.logging)
    if not settings.desktop.database.dsn:
        try:
            defaults = running_defaults(settings.desktop.data_dir)
        except EmbeddedPostgresError as error:
            raise ConfigurationError([f"desktop.data_dir: {error}"]) from error
        settings = with_defaults(settings, defaults) if defaults else settings
    run(lambda: _beats(settings))


def _require_switched_on(settings: "Settings") -> None:
    """Raises ConfigurationError."""
    tasks = settings.desktop.task_server
    problems = [
        f"desktop.task_server.{name}: is false, and `queryserver beat` needs it."
        for name, is_on in (("enabled", tasks.enabled), ("beat_enabled", tasks.beat_enabled))
        if not is_on
    ]
    if problems:
        raise ConfigurationError(problems)


async def _beats(settings: "Settings") -> None:
    """Until SIGTERM or SIGINT. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    import structlog  # noqa: PLC0415 slow to import

    from queryserver.platform.deployment import Role  # noqa: PLC0415 slow to import
    from queryserver.wiring import open_services  # noqa: PLC0415 half a second that other commands need not wait

    log = structlog.get_logger(__name__)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with open_services(settings, role=Role.BEAT) as services:
        log.info("queryserver beat fires schedules", instance=services.statements.runner.owner)
        await stopped.wait()
        log.info("queryserver beat stops")
