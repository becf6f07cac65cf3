"""Builds the service for documents."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from queryserver.connectors.registry import Connectors
from queryserver.documents.documents import Documents
from queryserver.documents.repository import DocumentRecords
from queryserver.identity.model import UsernameRule
from queryserver.platform.database import Database
from queryserver.platform.settings.tree import Settings
from queryserver.statements.status import StatementAccess


def trash_sweep(settings: Settings, database: Database) -> Callable[..., Awaitable[Mapping[str, int]]]:
    """Return the step of the clean-up that empties the trash."""
    return partial(DocumentRecords(database).clean_up, trashed_for=settings.documents.trash_retention)


def document_service(
    settings: Settings, database: Database, connectors: Connectors, statements: StatementAccess
) -> Documents:
    """Build the service. It needs no background work."""
    return Documents(
        records=DocumentRecords(database),
        connectors=connectors,
        statements=statements,
        usernames=UsernameRule.of(settings.desktop.auth),
        settings=settings.documents,
    )
