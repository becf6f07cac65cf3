"""What is wrong with the settings of a server that runs (Contract platform 7.5)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from queryserver.domain.findings import Finding
from queryserver.settings import Settings
from queryserver.settings.report import shown_value

_WITHIN_S = 28.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found, and where the settings come from."""

    settings: Settings
    findings: Sequence[Finding]

    @property
    def directory(self) -> str:
        """That of the settings file; empty without one."""
        file = self.settings.sources.file
        return str(file.absolute().parent) if file else ""

    def value_of(self, key: str) -> str:
        """The effective value of a key; secrets masked, empty for tables and for what is no key."""
        return shown_value(self.settings, key)


class ConfigurationCheck:
    """Runs the checks of `queryserver config check` that change nothing, one caller at a time."""

    def __init__(self, settings: Settings, find: Callable[[], Awaitable[Sequence[Finding]]]) -> None:
        self._settings = settings
        self._find = find
        self._running = asyncio.Lock()

    async def report(self) -> CheckReport:
        """Within 30 s."""
        try:
            async with asyncio.timeout(_WITHIN_S), self._running:
                findings = await self._find()
        except TimeoutError:
            findings = [Finding.error("desktop", f"could not be checked within {_WITHIN_S:.0f} s.")]
        return CheckReport(self._settings, findings)
