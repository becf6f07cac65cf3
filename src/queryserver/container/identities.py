"""The administration of links to other issuers alone, for commands."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

from queryserver.auth.external import ANY
from queryserver.auth.plug_ins import is_import_path
from queryserver.container.administration import account_rules
from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.accounts import IdentityRepository
from queryserver.db.database import open_database
from queryserver.db.migrations import require_newest
from queryserver.domain.identities import LDAP, ExternalIdentity, jwt_issuer, plug_in_issuer
from queryserver.services.identities import Identities, IdentityRules
from queryserver.settings import Settings
from queryserver.settings.auth import AuthSettings


@asynccontextmanager
async def open_identities(settings: Settings) -> AsyncGenerator[Identities]:
    """Links on the service database. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    async with open_database(dsn, pool_limits(settings)) as database:
        yield Identities(IdentityRepository(database), _rules(auth))


def checked_identity(settings: Settings, name: str, issuer: str, subject: str | None) -> ExternalIdentity:
    """The subject of an issuer of the settings. Raises InvalidUsername, InvalidParameter."""
    return _rules(settings.desktop.auth).identity(name, issuer, subject)


def _rules(auth: AuthSettings) -> IdentityRules:
    return IdentityRules(account_rules(auth).usernames, _issuers(auth))


def _issuers(auth: AuthSettings) -> Collection[str] | None:
    """The issuers that the settings name; None: tokens of any issuer are taken."""
    if auth.jwt.issuer == ANY:
        return None
    listed = {plug_in_issuer(name) for name in (*auth.backend, *auth.authenticators) if is_import_path(name)}
    if LDAP in auth.backend:
        listed.add(LDAP)
    if auth.jwt.key_server_url:
        listed.add(jwt_issuer(auth.jwt.issuer))
    return listed
