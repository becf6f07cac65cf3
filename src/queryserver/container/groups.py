"""The administration of groups alone, for commands."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.accounts import GroupRepository
from queryserver.db.database import open_database
from queryserver.db.migrations import require_newest
from queryserver.domain.usernames import UsernameRule
from queryserver.services.groups import Groups
from queryserver.settings import Settings


@asynccontextmanager
async def open_groups(settings: Settings) -> AsyncGenerator[Groups]:
    """Groups on the service database. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    rule = UsernameRule(auth.ignore_username_case, auth.force_username_lowercase, auth.force_username_uppercase)
    async with open_database(dsn, pool_limits(settings)) as database:
        yield Groups(GroupRepository(database), rule, auth.default_user_group)
