"""The base class of the engine contract: the adapter's facts, and fixtures that depend on them."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import ClassVar
from uuid import uuid4

import pytest
from tests.contract.engine_facts import EngineFacts

from queryserver.engines.protocol import Engine, EngineSession, SessionOptions
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User

USER = User(id=1, username="ada")
NO_OPTIONS = SessionOptions()
STOP_S = 20.0
"""Time in seconds that a canceled statement may take to stop on a busy machine. `slow_sql` runs for longer."""


class EngineBasis:
    """The base class of the engine tests.

    A subclass declares `facts`, `known_failures`, `running_statements` and the fixture `engine`.
    """

    facts: ClassVar[EngineFacts]
    tested_with: ClassVar[str] = ""
    """The server that the tests connect to, as named in the support table: `Trino 476`, `scripted peer`."""
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {}

    async def running_statements(self, engine: Engine) -> int:
        """Return how many of the tests' statements the engine is running."""
        raise NotImplementedError

    @pytest.fixture
    async def session(self, engine: Engine) -> AsyncGenerator[EngineSession]:
        async with engine.session(USER, NO_OPTIONS) as session:
            yield session

    @pytest.fixture
    def table(self) -> str:
        return f"t_{uuid4().hex[:12]}"

    async def eventually_idle(self, engine: Engine) -> None:
        """Wait until the engine runs no statement; fail after `STOP_S`."""
        async with asyncio.timeout(STOP_S):
            while await self.running_statements(engine):  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.05)

    async def eventually_at_work(self, engine: Engine) -> None:
        """Wait until the engine runs exactly one statement."""
        async with asyncio.timeout(30):
            while await self.running_statements(engine) != 1:  # noqa: ASYNC110 as above
                await asyncio.sleep(0.05)

    def assert_tidy(self, error: EngineError) -> None:
        """Assert that the message is suitable for the user who wrote the statement."""
        assert error.message.strip() == error.message != ""
        for word in ("Traceback", 'File "', "object at 0x", *self.facts.driver_words):
            assert word not in error.message
