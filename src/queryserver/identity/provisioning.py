"""Just-in-time provisioning: maps external identities to users (Contract platform 3.9 rule 7, 4.2)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from queryserver import errors
from queryserver.identity.callers import CallerKey, CallerRepository, KnownCaller, require_valid
from queryserver.identity.model import AuthenticatedUser, ExternalIdentity, User, UsernameRule
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.platform.caches import LruCache
from queryserver.platform.logs import AUDIT, BY_SERVER
from queryserver.platform.settings.desktop import AuthSettings

log = structlog.get_logger(__name__)

_GROUPS_CACHED_S = 60.0
_MAX_CACHED_USERS = 4096


@dataclass(eq=False, repr=False)
class Provisioning:
    """Finds the users of external identities and creates missing users.

    New users are ordinary active users without a password. They join the default group and are linked to the identity.
    An existing user is linked on the first call with a matching name. Only an administrator can link service accounts,
    administrators, and users who have a password or another identity.
    """

    callers: CallerRepository
    accounts: AccountRepository
    auth: AuthSettings
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._usernames = UsernameRule.of(self.auth)
        self._synced_groups = LruCache[int, tuple[frozenset[str], frozenset[str]]](
            _MAX_CACHED_USERS, life_s=_GROUPS_CACHED_S, clock=self.clock
        )
        """For each user id, the groups that the back end named last, and the resulting memberships."""

    async def user(
        self,
        identity: ExternalIdentity,
        *,
        person: AuthenticatedUser | None = None,
        token_id: str = "",
        may_create: bool = True,
    ) -> User:
        """Return the user of an identity and update the user's groups from `person`.

        Takes one query if the identity is linked and the groups are unchanged. Raises IdentityRefused, UserNotFound
        (unknown, and `may_create` is false), UserInactive, InvalidToken (the token was revoked), DatabaseUnavailable.
        """
        person = person or AuthenticatedUser(identity.subject)
        key = self._key(identity, person.username, token_id)
        known = await self.callers.caller(key)
        if known is None and may_create:
            await self._create(identity, person)
            known = await self.callers.caller(key)
        known = require_valid(self._permitted(identity, person.username, known))
        if not known.is_linked:
            if await self.accounts.link_first(known.user.id, identity):
                log.info("identity linked at first login", user_id=known.user.id, issuer=identity.issuer)
                subject = f"{known.user.username} {identity.issuer}"
                AUDIT.record(known.user.username, "user.link", subject, facts=BY_SERVER)
            # A concurrent first call may have linked the user, perhaps to another identity.
            known = require_valid(self._permitted(identity, person.username, await self.callers.caller(key)))
        if person.groups is not None and await self._sync_groups(known.user, frozenset(person.groups)):
            known = require_valid(self._permitted(identity, person.username, await self.callers.caller(key)))
        if not known.logged_in_recently:
            await self.callers.note_call(known.user.id)
        return known.user

    async def known(self, identity: ExternalIdentity, *, token_id: str = "") -> KnownCaller | None:
        """Return the user of an identity, even if the user is disabled or the token was revoked; None if unknown.

        Unlike `user`, this changes nothing. Raises IdentityRefused.
        """
        key = self._key(identity, identity.subject, token_id)
        return self._permitted(identity, identity.subject, await self.callers.caller(key))

    def _key(self, identity: ExternalIdentity, name: str, token_id: str) -> CallerKey:
        try:
            return CallerKey(identity, self._usernames.read_exact(name).key, token_id)
        except errors.InvalidUsername:
            return CallerKey(identity, None, token_id)

    def _permitted(self, identity: ExternalIdentity, name: str, known: KnownCaller | None) -> KnownCaller | None:
        """Return `known` if the identity may act as that user, or None if there is no user. Raises IdentityRefused."""
        reason = None
        if known is None:
            reason = self._wrong_name(name)
        elif known.is_linked:
            return known
        elif known.has_identities:
            reason = f"the user {known.user.username} belongs to another identity"
        elif known.is_service_account:
            reason = f"the user {known.user.username} is a service account"
        elif known.has_password or known.user.is_admin:
            kind = "has a password" if known.has_password else "is an administrator"
            reason = f"the user {known.user.username} {kind} and is not linked to {identity.issuer}"
        elif known.user.username.lower() != name.lower():
            # For example, `straße` and `strasse` have the same key but are different people at the issuer.
            reason = f"its name differs from that of the user {known.user.username} in more than case"
        if reason is not None:
            raise errors.IdentityRefused(reason)
        return known

    def _wrong_name(self, text: str) -> str | None:
        """Explain why no user can be created with this name; None if the name is valid."""
        try:
            name = self._usernames.read(text)
        except errors.InvalidUsername:
            return "its name is not a valid user name, and it is not linked to a user"
        if name.shown == text:
            return None
        return f"its name is not in the normal form {name.shown}, and it is not linked to a user"

    async def _create(self, identity: ExternalIdentity, person: AuthenticatedUser) -> None:
        """Create the user, unless a concurrent call has just done so. Raises IdentityRefused if the name is invalid."""
        if reason := self._wrong_name(person.username):
            raise errors.IdentityRefused(reason)
        account = NewAccount(
            self._usernames.read_exact(person.username),
            first_name=person.first_name,
            last_name=person.last_name,
            email=person.email,
            identity=identity,
        )
        try:
            user_id = await self.accounts.create(account, default_group=self.auth.default_user_group)
        except errors.NameTaken:
            return  # a concurrent call has created the user
        log.info("user created at first login", user_id=user_id)
        AUDIT.record(account.username.shown, "user.create", account.username.shown, facts=BY_SERVER)

    async def _sync_groups(self, user: User, named: frozenset[str]) -> bool:
        """Make the user a member of exactly the named groups and the default group. Returns whether anything changed.

        Skips the write if the same names led to the user's current groups within the last minute.
        """
        synced = self._synced_groups.get(user.id)
        if synced == (named, user.groups):
            return False
        groups = await self.callers.join_only(user.id, sorted(named), default_group=self.auth.default_user_group)
        # A concurrent call may have made and recorded the same changes.
        latest = self._synced_groups.get(user.id)
        before = user.groups if latest is None or latest is synced else latest[1]
        for operation, changed in (("group.add_member", groups - before), ("group.remove_member", before - groups)):
            for group in sorted(changed):
                AUDIT.record(user.username, operation, f"{group} {user.username}", facts=BY_SERVER)
        if left_out := named - groups:
            log.warning(
                "groups ignored: unknown, or with administrator rights", user_id=user.id, groups=sorted(left_out)
            )
        self._synced_groups.put(user.id, (named, groups))
        return groups != user.groups
