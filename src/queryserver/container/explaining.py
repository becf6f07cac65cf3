"""What explains tokens, for a command beside the server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from queryserver.auth.explaining import Explainer, ExplainParts
from queryserver.auth.keys import load_keyring, require_known_key
from queryserver.container.administration import account_rules
from queryserver.container.callers import OWN_JWT, open_external_tokens
from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.accounts import AccountRepository, IdentityRepository
from queryserver.db.database import open_database
from queryserver.db.deployment import FactRepository
from queryserver.db.migrations import require_newest
from queryserver.db.tokens import CallerRepository, TokenRepository
from queryserver.services.arrivals import Arrivals
from queryserver.services.external_bearers import ExternalBearers
from queryserver.settings import Settings


@asynccontextmanager
async def open_explainer(settings: Settings) -> AsyncGenerator[Explainer]:
    """Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn, pool_limits(settings)))
        keyring = await asyncio.to_thread(load_keyring, settings.desktop)
        await require_known_key(keyring, FactRepository(database))
        records, callers = TokenRepository(database), CallerRepository(database)
        stack.push_async_callback(records.aclose)
        stack.push_async_callback(callers.aclose)
        rules = account_rules(auth)
        arrivals = Arrivals(
            callers,
            AccountRepository(database),
            IdentityRepository(database),
            rules.usernames,
            default_group=auth.default_user_group,
        )
        reader = await stack.enter_async_context(open_external_tokens(settings))
        bearers = reader and ExternalBearers(reader, arrivals, records, create_users=auth.jwt.create_users)
        yield Explainer(ExplainParts(keyring, records, OWN_JWT in auth.authenticators, reader, bearers))
