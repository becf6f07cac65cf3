"""The worker and beat processes that `serve --embedded --with-workers` starts."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import structlog
from pydantic import SecretStr

from queryserver.platform.settings.loader import PREFIX
from queryserver.platform.settings.tree import Settings, contradictions
from queryserver.platform.threads import Restarts

log = structlog.get_logger(__name__)

_PROGRAM = "from queryserver.cli import main; main()"
_STOP = b"stop\n"


def with_fleet(settings: Settings, broker_url: str) -> Settings:
    """Return the settings with the task server and schedules enabled, using this broker."""
    desktop = settings.desktop
    changed = {"enabled": True, "beat_enabled": True, "broker_url": SecretStr(broker_url)}
    tasks = desktop.task_server.model_copy(update=changed)
    return settings.model_copy(update={"desktop": desktop.model_copy(update={"task_server": tasks})})


def fleet_problems(settings: Settings) -> list[str]:
    """Return the reasons why worker and beat would reject the server's settings; empty if they accept them."""
    fleet = with_fleet(settings, settings.desktop.task_server.broker_url.get_secret_value())
    return [f"{key}: {text}" for key, text in contradictions(fleet, settings.sources.origins)]


def fleet_environment(environ: Mapping[str, str], broker_url: str) -> dict[str, str]:
    """Return `environ` with the changes of `with_fleet`, for processes that read their own settings."""
    # The metrics port is disabled, because worker and beat would both listen on the same port.
    values = {"ENABLED": "true", "BEAT_ENABLED": "true", "BROKER_URL": broker_url, "METRICS_PORT": "0"}
    chosen = {f"{PREFIX}DESKTOP__TASK_SERVER__{key}".upper(): value for key, value in values.items()}
    return {name: value for name, value in environ.items() if name.upper() not in chosen} | chosen


class Companions:
    """A worker and a beat process. They are restarted when they exit, and stop together with the server."""

    def __init__(self, environment: Mapping[str, str], *, end_within_s: float) -> None:
        self._environment = environment
        self._end_within_s = end_within_s
        self._inputs: set[asyncio.StreamWriter] = set()
        self._is_stopping = False

    def begin_stop(self) -> None:
        """Request the processes to stop while the server stops, each within its own grace period."""
        self._is_stopping = True
        for writer in self._inputs:
            writer.write(_STOP)  # without these bytes, the processes take the end of the pipe for a crash of the server
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        commands = [("worker", "--with-parent"), ("beat", "--with-parent")]
        keepers = [asyncio.create_task(self._keep(*command), name=command[0]) for command in commands]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, *command: str) -> None:
        restarts = Restarts()
        while True:
            restarts.begin()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, *command),
                stdin=asyncio.subprocess.PIPE,
                env=self._environment,
                # Ctrl-C in the terminal must reach only the server, which then stops these processes.
                start_new_session=True,
            )
            given = {process.stdin} if process.stdin is not None else set[asyncio.StreamWriter]()
            self._inputs |= given
            try:
                await process.wait()
            finally:
                await self._end(process)
                self._inputs -= given
            if self._is_stopping:
                return
            wait_s = restarts.pause_s()
            log.error("process ended", command=command[0], exit_code=process.returncode, again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is not None:
            return
        try:
            async with asyncio.timeout(self._end_within_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
