"""Leases on data that only one process can open at a time, such as DuckDB files."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.statements.intake import Intake, RunnerInstance
from queryserver.statements.session_repository import SessionRecords


@dataclass(eq=False)
class DataLeases:
    """The data that this process holds, by the names that `Connectors.data_of` returns."""

    instance: RunnerInstance
    records: SessionRecords
    connectors: Connectors
    lease: timedelta
    _names: set[str] = field(default_factory=set[str], init=False)

    @property
    def names(self) -> frozenset[str]:
        """Names of the data that this process holds."""
        return frozenset(self._names)

    def holds(self, name: str | None) -> bool:
        """Whether this process holds the data and starts new work; does not acquire them."""
        return not self.instance.is_draining and name in self._names

    async def may_run(self, connector: Connector) -> bool:
        """Whether this process can run statements of the connector; acquires its data if they are free."""
        name = self.connectors.data_of(connector)
        return not self.instance.is_draining and (name is None or await self.may_hold(name))

    async def may_hold(self, name: str) -> bool:
        """Whether this process holds the data; acquires them if they are free."""
        if self.instance.is_draining:
            return False
        # A server with workers acquires none: it would hold them, and run the statements that workers should run.
        if name not in self._names and self.instance.intake is not Intake.BOUND:
            await self.acquire([name])
        return name in self._names

    async def acquire_configured(self, *, take_over_all: bool = False) -> None:
        """Try to acquire the data of all connectors; with `take_over_all`, from all other processes."""
        await self.acquire(self.connectors.data_to_hold() - self._names, take_over_all=take_over_all)

    async def acquire(self, names: Iterable[str], *, take_over_all: bool = False) -> None:
        """Acquire or renew leases, and close engines whose lease another process has acquired."""
        for name in names:
            if await self.records.hold_engine(
                name, owner=self.instance.owner, lease=self.lease, ignore_leases=take_over_all
            ):
                self._names.add(name)
            elif name in self._names:
                self._names.discard(name)
                await self.connectors.discard_engines(name)

    async def renew(self) -> None:
        """Renew all leases; release data that no connector names any more, once no engine has them open."""
        self._names &= self.connectors.data_to_hold() | self.connectors.data_in_use()
        await self.acquire(list(self._names))

    async def release(self) -> None:
        """Release all leases."""
        # First, so that the next heartbeat does not renew them.
        self._names.clear()
        await self.records.release_engines(owner=self.instance.owner)
