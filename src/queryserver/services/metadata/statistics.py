"""Statistics that an engine computes of a table or a column (Contract editor 10.5)."""

from collections.abc import Sequence
from typing import Any

from queryserver.domain.connector import Connector
from queryserver.domain.user import User
from queryserver.interfaces.statements import Recorded
from queryserver.services.connectors import Connectors
from queryserver.services.metadata import questions
from queryserver.services.metadata.elsewhere import Elsewhere
from queryserver.services.metadata.lookups import LookUps
from queryserver.services.statements.submission import Submission, Submissions

_STATEMENT = "analyze"


class Analyses:
    """Starts the engine's statistics statement as an operation that is in nobody's history."""

    def __init__(
        self, lookups: LookUps, elsewhere: Elsewhere, connectors: Connectors, submissions: Submissions
    ) -> None:
        elsewhere.serve(_STATEMENT, self._statement)
        self._lookups = lookups
        self._connectors = connectors
        self._submissions = submissions

    async def start(self, user: User, connector: str, database: str, table: str, column: str | None) -> Recorded:
        """The operation; nothing is started for a table or column that is not there.

        Raises UnknownDialect, NotSupported, CredentialsRequired, EngineError, database_not_found, TableNotFound,
        column_not_found, too_many_statements, quota_exceeded.
        """
        source = self._connectors.resolve(user, connector)

        found = await self._lookups.anywhere(
            user, source, _STATEMENT, [database, table, column], budget=source.limits.metadata_timeout
        )
        return await self._submissions.submit(
            user, Submission(connector=source.key, script=found.decode(), in_history=False)
        )

    async def _statement(self, user: User, source: Connector, asked: Sequence[Any]) -> bytes:
        """Looked up at the engine, not in the cache: a table dropped elsewhere must not be analyzed."""
        database, table, column = asked
        async with self._lookups.catalog(user, source) as catalog:
            described = await catalog.table(database, table)
            name = None if column is None else questions.column_of(described, column).name
            return catalog.analyze_statement(described, name).encode()
