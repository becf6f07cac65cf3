"""Each engine belongs to one version of a connector and is closed after its last use (Contract platform 5.6)."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
from tests.fakes.engine import FakeEngine
from tests.refusals import raises_code
from tests.unit.statements.driving import ANA, CONNECTOR, until

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import ConfigurationError, DatabaseUnavailable, PermissionDenied
from queryserver.errors.statements import EngineUnavailable, UnknownDialect, interface_not_supported
from queryserver.identity.model import User

_ROOT = replace(ANA, id=9, username="root", is_admin=True)


class CountedEngine(FakeEngine):
    """An engine that counts how often it is closed."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(dialect=connector.dialect)
        self.version = connector.version
        self.closings = 0

    async def close(self) -> None:
        self.closings += 1
        await super().close()


@dataclass
class World:
    """The stored connectors and the engines built from them."""

    stored: list[Connector] = field(default_factory=list[Connector])
    state: int = 0
    reads: int = 0
    is_down: bool = False
    built: list[CountedEngine] = field(default_factory=list[CountedEngine])

    def __post_init__(self) -> None:
        self.connectors = Connectors([CONNECTOR], build=self.build, read_stored=self.read)

    def build(self, connector: Connector) -> CountedEngine:
        if connector.interface == "unknown":
            raise interface_not_supported("It does not run here.")
        if connector.interface == "refused":
            raise ConfigurationError(["url: the driver is not allowed."])
        if connector.interface == "broken":
            raise NotImplementedError
        engine = CountedEngine(connector)
        self.built.append(engine)
        return engine

    async def read(self) -> tuple[int, Sequence[Connector]]:
        self.reads += 1
        await asyncio.sleep(0)
        if self.is_down:
            raise DatabaseUnavailable
        return self.state, tuple(self.stored)

    async def have(self, *connectors: Connector) -> None:
        """Store exactly these connectors, and wait until the registry has loaded them."""
        self.stored = list(connectors)
        self.state += 1
        await self.connectors.at_least(self.state)

    def of_version(self, version: int) -> CountedEngine:
        """Return the engine that was built for this version of connector 7."""
        (found,) = (one for one in self.built if one.version == version)
        return found


def stored(version: int = 1, *, interface: str = "fake") -> Connector:
    """Return connector 7 with this version number."""
    return replace(
        CONNECTOR, key="7", dialect="trino", interface=interface, nice_name="Lake", right="connector:7", version=version
    )


async def test_engine_of_a_changed_connector_is_closed_after_its_last_use() -> None:
    world = World()
    await world.have(stored(1))
    async with AsyncExitStack() as uses:
        for _ in range(2):
            await uses.enter_async_context(world.connectors.using(stored(1)))
        await world.have(stored(2))
        async with world.connectors.using(stored(1)) as engine:
            assert isinstance(engine, CountedEngine)
            assert engine.version == 2, "what was resolved before the change uses the new engine"
        await asyncio.sleep(0)
        assert world.of_version(1).closings == 0
    await world.connectors.aclose()
    assert [one.closings for one in world.built] == [1, 1]


async def test_unused_engine_is_closed_immediately() -> None:
    world = World()
    await world.have(stored(1))
    await world.have(stored(2))
    await until(lambda: world.of_version(1).closings == 1)
    assert world.of_version(2).closings == 0


async def test_unchanged_connector_keeps_its_engine() -> None:
    world = World()
    await world.have(stored(1))
    await world.have(stored(1), replace(stored(1), key="8", right="connector:8"))
    await asyncio.sleep(0)
    assert [one.closings for one in world.built] == [0, 0]


async def test_deleted_connector_rejects_new_uses_and_old_uses_continue() -> None:
    world = World()
    await world.have(stored(1))
    async with world.connectors.using(stored(1)):
        await world.have()
        with pytest.raises(EngineUnavailable, match="no longer exists"):
            async with world.connectors.using(stored(1)):
                pytest.fail("it is gone")
        with pytest.raises(UnknownDialect):
            world.connectors.resolve(_ROOT, "7")
        assert world.of_version(1).closings == 0
    await until(lambda: world.of_version(1).closings == 1)


async def test_known_state_is_not_read_again_and_concurrent_callers_share_a_read() -> None:
    world = World(stored=[stored(1)], state=3)
    await asyncio.gather(*(world.connectors.at_least(3) for _ in range(10)))
    await world.connectors.at_least(2)
    assert world.reads == 1
    await world.connectors.at_least(4)
    assert world.reads == 2


@pytest.mark.platform(63, 84)
@pytest.mark.security("T22")
async def test_connector_is_open_to_users_with_its_right() -> None:
    world = World()
    await world.have(stored(1))
    granted = User(2, "eve", rights=frozenset({"connector:7"}))
    everywhere = User(3, "dan", rights=frozenset({"connector:*"}))
    for user in (granted, everywhere, _ROOT):
        assert world.connectors.resolve(user, "7").nice_name == "Lake"
        assert world.connectors.resolve(user, "trino").key == "7"
    with pytest.raises(UnknownDialect):
        world.connectors.resolve(ANA, "7")
    with pytest.raises(PermissionDenied):
        world.connectors.require_permission(ANA, "7")


@pytest.mark.platform(74)
async def test_unsupported_connector_is_hidden_and_does_not_affect_others() -> None:
    world = World()
    await world.have(stored(1, interface="unknown"), replace(stored(1), key="8", right="connector:8"))
    assert [one.key for one in world.connectors.visible(_ROOT)] == [CONNECTOR.key, "8"]
    with raises_code("interface_not_supported"):
        world.connectors.resolve(_ROOT, "7")
    with pytest.raises(UnknownDialect):
        world.connectors.resolve(ANA, "7")
    with pytest.raises(PermissionDenied):
        world.connectors.require_permission(ANA, "7")
    await world.have(stored(2, interface="refused"))
    with pytest.raises(UnknownDialect):
        world.connectors.resolve(_ROOT, "7")


async def test_stored_id_precedes_a_configured_key() -> None:
    world = World()
    await world.have(replace(stored(1), key=CONNECTOR.key))
    assert world.connectors.resolve(_ROOT, CONNECTOR.key).nice_name == "Lake"
    await world.have()
    assert world.connectors.resolve(_ROOT, CONNECTOR.key) == CONNECTOR


async def test_possible_changes_are_read_again_even_after_an_outage() -> None:
    world = World()
    async with world.connectors.watching():
        world.stored, world.is_down = [stored(1)], True
        world.connectors.may_have_changed()
        await until(lambda: world.reads == 1)
        world.is_down = False
        await until(lambda: world.connectors.find("7") is not None)


async def test_subscribers_receive_each_change() -> None:
    world = World()
    seen = list[int]()

    async def follow() -> None:
        async for _ in world.connectors.changes():
            seen.append(len(world.connectors.visible(_ROOT)))

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        await asyncio.sleep(0)
        await world.have(stored(1))
        await until(lambda: seen == [2])
        await world.have()
        await until(lambda: seen == [2, 1])
        following.cancel()


async def test_broken_connector_does_not_prevent_reading_others() -> None:
    world = World()
    await world.have(stored(interface="broken"), replace(stored(), key="8"))
    assert [one.key for one in world.connectors.visible(_ROOT)] == [CONNECTOR.key, "8"]
    with pytest.raises(UnknownDialect):
        world.connectors.resolve(_ROOT, "7")
