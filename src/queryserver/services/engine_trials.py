"""An engine under test (Contract platform 5.8)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from queryserver.domain.errors.statements import EngineError
from queryserver.domain.user import User
from queryserver.interfaces.engine import Engine, EngineSession, SessionOptions
from queryserver.services.metadata import direct

_HELLO = "SELECT 'Hello World!'"
_HELLOS = {"oracle": "SELECT 'Hello World!' FROM dual", "calcite": "VALUES 1", "elasticsearch": "SELECT 1"}
"""Where the usual one is no statement."""

_VERSIONS = {
    "postgresql": "SELECT current_setting('server_version')",
    "redshift": "SELECT version()",
    "mysql": "SELECT version()",
    "hive": "SELECT version()",
    "hplsql": "SELECT version()",
    "impala": "SELECT version()",
    "sparksql": "SELECT version()",
    "trino": "SELECT version()",
    "duckdb": "SELECT version()",
    "sqlite": "SELECT sqlite_version()",
    "clickhouse": "SELECT version()",
    "snowflake": "SELECT current_version()",
}
"""The version is asked for where a statement tells it."""

_LONGEST_VERSION = 200


class EngineAttempt:
    """See `interfaces.connection_trials.Attempt`; owns the engine."""

    def __init__(self, engine: Engine, dialect: str, *, passes_tokens: bool) -> None:
        self._engine = engine
        self._dialect = dialect
        self._passes_tokens = passes_tokens

    @asynccontextmanager
    async def login(self, user: User) -> AsyncGenerator["EngineLogin"]:
        """See the Protocol."""
        token = user.external_token if self._passes_tokens else None
        options = SessionOptions(
            external_token=token.text if token else None,
            token_expires_at=token.expires_at if token else None,
        )
        async with self._engine.session(user, options) as session:
            yield EngineLogin(session, self._dialect)

    async def close(self) -> None:
        """See the Protocol."""
        await self._engine.close()


class EngineLogin:
    """See `interfaces.connection_trials.LoggedIn`."""

    def __init__(self, session: EngineSession, dialect: str) -> None:
        self._session = session
        self._dialect = dialect

    async def try_it(self) -> str | None:
        """See the Protocol. An engine that says no version may be a good one."""
        await direct.run(self._session, _HELLOS.get(self._dialect, _HELLO), max_rows=1)
        question = _VERSIONS.get(self._dialect)
        try:
            answer = await direct.run(self._session, question, max_rows=1) if question else direct.Answer()
        except EngineError:
            return None
        for batch in answer.rows:
            if batch.num_rows and batch.num_columns:
                return str(batch.column(0)[0].as_py())[:_LONGEST_VERSION]
        return None
