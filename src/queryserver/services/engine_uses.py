"""The engines of connectors, each for one version of its connector, closed when nobody uses them any more."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import QueryServerError
from queryserver.interfaces.engine import Engine
from queryserver.interfaces.metrics import UNMEASURED, StatementMetrics

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Kept:
    """An engine and how many statements, sessions and looks are in it."""

    connector: Connector
    engine: Engine
    uses: int = 0
    is_retired: bool = False


class EngineUses:
    """Builds engines at their first use and counts uses.

    A retired engine takes no new use. What is in it goes on; with the last use it is closed.
    """

    def __init__(self, build: Callable[[Connector], Engine], metrics: StatementMetrics = UNMEASURED) -> None:
        self._build = build
        self._metrics = metrics
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._retired: set[_Kept] = set()
        self._closings: set[asyncio.Task[None]] = set()

    async def prepare(self, connector: Connector) -> None:
        """Build the engine aside: that may import a driver or read certificates.

        Raises ConfigurationError, NotSupported for one that this server cannot run.
        """
        if _key(connector) not in self._kept:
            engine = await asyncio.to_thread(self._build, connector)
            self._kept.setdefault(_key(connector), _Kept(connector, engine))

    def engine(self, connector: Connector) -> Engine:
        """The engine of this version, to ask what it can do; not to open anything in."""
        return self._of(connector).engine

    @asynccontextmanager
    async def using(self, connector: Connector) -> AsyncGenerator[Engine]:
        """The engine of this version, which stays open while inside."""
        kept = self._of(connector)
        kept.uses += 1
        try:
            with self._metrics.engine_session(connector.dialect):
                yield kept.engine
        finally:
            kept.uses -= 1
            if kept.is_retired and not kept.uses:
                self._close_aside(kept)

    def retire_all_but(self, connectors: Iterable[Connector]) -> None:
        """From now on only the engines of these connectors, in these versions, take new uses."""
        wanted = {_key(connector) for connector in connectors}
        for key in self._kept.keys() - wanted:
            kept = self._kept.pop(key)
            kept.is_retired = True
            self._retired.add(kept)
            if not kept.uses:
                self._close_aside(kept)

    def open_engines(self) -> list[tuple[Connector, Engine]]:
        """All that are not closed, retired ones too."""
        return [(kept.connector, kept.engine) for kept in (*self._kept.values(), *self._retired)]

    async def discard(self, fits: Callable[[Connector, Engine], bool]) -> None:
        """Close engines now, whatever runs in them; the next use builds them anew."""
        for kept in (*self._kept.values(), *self._retired):
            if fits(kept.connector, kept.engine):
                if self._kept.get(_key(kept.connector)) is kept:
                    del self._kept[_key(kept.connector)]
                self._retired.discard(kept)
                await kept.engine.close()

    async def aclose(self) -> None:
        """Close all, side by side: an engine that hangs must not keep the others open."""
        # A retired engine without a use is among `_closings` already.
        kept = [*self._kept.values(), *(one for one in self._retired if one.uses)]
        self._kept.clear()
        closings = asyncio.gather(*self._closings, return_exceptions=True)
        await asyncio.gather(closings, *map(self._close, kept))

    def _of(self, connector: Connector) -> _Kept:
        kept = self._kept.get(_key(connector))
        if kept is None:
            kept = self._kept[_key(connector)] = _Kept(connector, self._build(connector))
        return kept

    def _close_aside(self, kept: _Kept) -> None:
        """Whoever used it last does not wait for its connections to close; `aclose` does."""
        closing = asyncio.create_task(self._close(kept), name=f"retired-engine-{kept.connector.key}")
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    async def _close(self, kept: _Kept) -> None:
        self._retired.discard(kept)
        try:
            await kept.engine.close()
        except QueryServerError as error:
            log.warning("engine did not close cleanly", connector=kept.connector.key, code=error.code)


def _key(connector: Connector) -> tuple[str, int]:
    return connector.key, connector.version
