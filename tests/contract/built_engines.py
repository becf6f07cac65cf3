"""Builds engines from connector settings, for tests of these settings."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.engines.protocol import Engine, SessionOptions
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User
from queryserver.platform.settings.tree import Settings

_LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)
_REFUSED_WITHIN_S = 20


@asynccontextmanager
async def built(interface: str, *, dialect: str = "shop", **options: str | int | bool) -> AsyncGenerator[Engine]:
    """Build the engine of a connector that uses `interface`; close the engine afterward."""
    connector = Connector("shop", dialect, interface, "Shop", _LIMITS, options=MappingProxyType(options))
    engine = EngineBuilder(Settings()).build(connector)
    try:
        yield engine
    finally:
        await engine.close()


async def cell(engine: Engine, sql: str, *, user: User = USER, options: SessionOptions = NO_OPTIONS) -> object:
    """Run a statement in a separate session and return its only value."""
    async with engine.session(user, options) as session:
        return (await run(session, sql)).cell


async def refusal(engine: Engine, *, user: User = USER, options: SessionOptions = NO_OPTIONS) -> EngineError:
    """Return the error that is raised when a session is opened."""
    async with asyncio.timeout(_REFUSED_WITHIN_S):
        try:
            async with engine.session(user, options):
                pytest.fail("a session was opened")
        except EngineError as error:
            return error


def assert_tells_nothing(error: EngineError, *secrets: str) -> None:
    """Assert that the message reveals none of the secrets and no server or driver internals."""
    for word in (*secrets, "Traceback", ".pem", "://", "_ssl.c", "127.0.0.1:", "httpx", "asyncpg", "asyncmy"):
        assert word not in error.message
