"""Tables in PostgreSQL keep the rules of loaders: the newest release always, release 15 when it is asked for."""

from collections.abc import AsyncGenerator
from typing import ClassVar

import pytest
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import NAMES, LoadingFacts
from tests.contract.postgresql_basis import EmbeddedBasis, Release15Basis

from queryserver.domain.importing import BaseType
from queryserver.engines.postgresql import PostgresqlAddress, PostgresqlEngine
from queryserver.engines.quoting import identifier
from queryserver.interfaces.engine import Engine

FACTS = LoadingFacts(
    dialect="postgresql",
    quoted=identifier,
    database="other schema",
    database_sql=("CREATE SCHEMA IF NOT EXISTS {d}",),
    refused=((BaseType.STRING, "a\0b", "0x00"),),
    names=(*NAMES, "é" * 31),
    refused_names=("é" * 32,),
    refused_columns=("ctid",),
    longest_name=63,
)


class ReadingBasis(LoadingContract):
    """With a second connector to the same database."""

    adapter = PostgresqlEngine
    loading_facts: ClassVar[LoadingFacts] = FACTS

    @pytest.fixture
    async def reading_engine(self, address: PostgresqlAddress) -> AsyncGenerator[Engine]:
        engine = PostgresqlEngine(address, read_only=True)
        yield engine
        await engine.close()


class TestPostgresqlLoading(EmbeddedBasis, ReadingBasis, LoadingContract):
    """The newest release."""


@pytest.mark.engine("postgresql15")
class TestPostgresql15Loading(Release15Basis, ReadingBasis, LoadingContract):
    """An older release."""
