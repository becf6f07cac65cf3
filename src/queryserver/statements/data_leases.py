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
    _held: set[str] = field(default_factory=set[str], init=False)

    @property
    def names(self) -> frozenset[str]:
        """The data held now."""
        return frozenset(self._held)

    def holds(self, name: str | None) -> bool:
        """Whether this process holds the data and starts new work; acquires nothing."""
        return not self.instance.is_draining and name in self._held

    async def may_run(self, connector: Connector) -> bool:
        """Whether this process can run statements of the connector; acquires its data if they are free."""
        name = self.connectors.data_of(connector)
        return not self.instance.is_draining and (name is None or await self.may_hold(name))

    async def may_hold(self, name: str) -> bool:
        """Whether this process holds the data; acquires them if they are free."""
        if self.instance.is_draining:
            return False
        # A server beside workers acquires none: it would keep them, and run the statements that workers should run.
        if name not in self._held and self.instance.intake is not Intake.BOUND:
            await self.acquire([name])
        return name in self._held

    async def acquire_configured(self, *, take_over_all: bool = False) -> None:
        """Try to acquire the data of all connectors. `take_over_all`: no other process is alive."""
        await self.acquire(self.connectors.data_to_hold() - self._held, take_over_all=take_over_all)

    async def acquire(self, names: Iterable[str], *, take_over_all: bool = False) -> None:
        """Acquire or renew leases. Engines whose lease was lost to another process are closed."""
        for name in names:
            if await self.records.hold_engine(
                name, owner=self.instance.owner, lease=self.lease, everything=take_over_all
            ):
                self._held.add(name)
            elif name in self._held:
                self._held.discard(name)
                await self.connectors.discard_engines(name)

    async def renew(self) -> None:
        """Renew all leases. Data that no connector names any more are given up once no engine has them open."""
        self._held &= self.connectors.data_to_hold() | self.connectors.data_in_use()
        await self.acquire(list(self._held))

    async def release(self) -> None:
        """Give up all leases."""
        # First, so that the next heartbeat does not renew what other processes may acquire from now on.
        self._held.clear()
        await self.records.release_engines(owner=self.instance.owner)
