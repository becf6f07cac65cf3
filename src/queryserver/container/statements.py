"""The administration of statements, in a server and for commands."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID

from queryserver.container.auditing import AUDIT
from queryserver.container.records import statement_ends
from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.database import Database, open_database
from queryserver.db.migrations import require_newest
from queryserver.db.notices import Notices
from queryserver.db.statements.overview import StatementOverview
from queryserver.db.statements.records import StatementRecords
from queryserver.services.auditing import AuditTrail
from queryserver.services.statements.administering import AskToStop, StatementAdministration
from queryserver.settings import Settings
from queryserver.tasks.inline import CANCEL


def statement_administration(
    database: Database, records: StatementRecords, ask_to_stop: AskToStop
) -> StatementAdministration:
    """The administration on an open database."""
    return StatementAdministration(StatementOverview(database), records, ask_to_stop, AuditTrail(AUDIT))


@asynccontextmanager
async def open_statements(settings: Settings) -> AsyncGenerator[StatementAdministration]:
    """The administration alone, for commands; the servers do what it requests.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with open_database(dsn, pool_limits(settings)) as database:
        records = StatementRecords(database, statement_ends(settings))
        try:
            notices = Notices(database)
            yield statement_administration(database, records, partial(_announce_cancel, notices))
        finally:
            await records.aclose()


async def _announce_cancel(notices: Notices, statement_id: UUID, owner: str | None) -> None:
    del owner  # every server receives it
    await notices.publish(CANCEL, str(statement_id))
