"""What all parts of the engine contract stand on: the facts of the adapter, and the fixtures made from them."""

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
"""When a canceled statement must have ended, on a busy machine too; `slow_sql` takes longer."""


class EngineBasis:
    """Declared by each adapter's test class: `facts`, `known_failures`, `running_statements`, fixture `engine`."""

    facts: ClassVar[EngineFacts]
    tested_with: ClassVar[str] = ""
    """The peer of these tests, for the support table: `Trino 476`, `scripted peer`."""
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {}

    async def running_statements(self, engine: Engine) -> int:
        """How many statements of the tests the engine is at work on, asked of the engine itself."""
        raise NotImplementedError

    @pytest.fixture
    async def session(self, engine: Engine) -> AsyncGenerator[EngineSession]:
        async with engine.session(USER, NO_OPTIONS) as session:
            yield session

    @pytest.fixture
    def table(self) -> str:
        return f"t_{uuid4().hex[:12]}"

    async def eventually_idle(self, engine: Engine) -> None:
        """The engine has stopped all work within `STOP_S`."""
        async with asyncio.timeout(STOP_S):
            while await self.running_statements(engine):  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.05)

    async def eventually_at_work(self, engine: Engine) -> None:
        """The engine works on exactly one statement."""
        async with asyncio.timeout(30):
            while await self.running_statements(engine) != 1:  # noqa: ASYNC110 as above
                await asyncio.sleep(0.05)

    def assert_tidy(self, error: EngineError) -> None:
        """The message is for the person who wrote the statement."""
        assert error.message.strip() == error.message != ""
        for word in ("Traceback", 'File "', "object at 0x", *self.facts.driver_words):
            assert word not in error.message
