"""Users on first sight: whoever another issuer or a plug-in vouches for (Contract platform 3.9 rule 7, 4.2)."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from queryserver.domain.errors import InvalidToken, InvalidUsername, UserInactive, UsernameTaken, UserNotFound
from queryserver.domain.user import AuthenticatedUser, User
from queryserver.domain.usernames import Username, UsernameRule
from queryserver.interfaces.accounts import AccountRecords, CallerKey, CallerRecords, KnownCaller, NewAccount
from queryserver.services.auditing import BY_SERVER, UNHEARD, AuditTrail

log = structlog.get_logger(__name__)

_SETTLED_S = 60.0
_MOST_SETTLED = 4096


@dataclass(frozen=True, slots=True)
class _Settled:
    """What came of the groups that were named for a user."""

    named: frozenset[str]
    groups: frozenset[str]
    until: float


class Arrivals:
    """Finds the users behind names that somebody vouches for, and makes those that are new.

    New users are active, no administrators, without password, in the default group.
    """

    def __init__(
        self,
        callers: CallerRecords,
        accounts: AccountRecords,
        usernames: UsernameRule,
        *,
        default_group: str,
        audit: AuditTrail = UNHEARD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._callers = callers
        self._accounts = accounts
        self._usernames = usernames
        self._default_group = default_group
        self._audit = audit
        self._clock = clock
        self._settled: OrderedDict[int, _Settled] = OrderedDict()

    async def user(
        self,
        username: Username,
        *,
        person: AuthenticatedUser | None = None,
        token_id: str = "",
        may_create: bool = True,
    ) -> User:
        """The user of that name as things stand now, in the groups of `person`. One query, for a user who is known.

        Raises UserNotFound (unknown, and not to be made), UserInactive, InvalidToken (the token of that id was
        ended), DatabaseUnavailable.
        """
        key = CallerKey(username.key, token_id)
        known = await self._callers.caller(key)
        if known is None and may_create:
            await self._create(username, person or AuthenticatedUser(username.shown))
            known = await self._callers.caller(key)
        known = _admitted(known)
        if person and person.groups is not None and await self._settle(known.user, frozenset(person.groups)):
            known = _admitted(await self._callers.caller(key))
        if not known.came_lately:
            await self._callers.note_call(known.user.id)
        return known.user

    async def vouched(self, person: AuthenticatedUser, *, may_create: bool = True) -> User:
        """The user whom a plug-in names. Raises UserNotFound also for a name that cannot be; else as `user`."""
        try:
            username = self._usernames.read(person.username)
        except InvalidUsername:
            raise UserNotFound from None
        return await self.user(username, person=person, may_create=may_create)

    async def known(self, username: Username, *, token_id: str = "") -> KnownCaller | None:
        """The user of that name, whatever the state; None: there is none."""
        return await self._callers.caller(CallerKey(username.key, token_id))

    async def _create(self, username: Username, person: AuthenticatedUser) -> None:
        account = NewAccount(username, first_name=person.first_name, last_name=person.last_name, email=person.email)
        try:
            user_id = await self._accounts.create(account, default_group=self._default_group)
        except UsernameTaken:
            return  # by a call at the side of this one
        log.info("user made at first sight", user_id=user_id)
        self._audit.record(username.shown, "user.create", username.shown, facts=BY_SERVER)

    async def _settle(self, user: User, named: frozenset[str]) -> bool:
        """Bring the groups of a user in line with those named; whether there was something to do.

        Nothing is written again while the user is in the groups that came of the same names within the last minute.
        """
        settled = self._settled.get(user.id)
        if settled and (settled.named, settled.groups) == (named, user.groups) and self._clock() < settled.until:
            return False
        groups = await self._callers.join_only(user.id, sorted(named), default_group=self._default_group)
        beside = self._settled.get(user.id)
        # A call at the side of this one may have found the same to do, and has told of it.
        self._tell(user.username, user.groups if beside is settled or beside is None else beside.groups, groups)
        if left_out := named - groups:
            log.warning("groups left out: unknown, or of administrators", user_id=user.id, groups=sorted(left_out))
        self._settled[user.id] = _Settled(named, groups, self._clock() + _SETTLED_S)
        self._settled.move_to_end(user.id)
        if len(self._settled) > _MOST_SETTLED:
            self._settled.popitem(last=False)
        return groups != user.groups

    def _tell(self, username: str, before: frozenset[str], now: frozenset[str]) -> None:
        for operation, groups in (("group.add_member", now - before), ("group.remove_member", before - now)):
            for group in sorted(groups):
                self._audit.record(username, operation, f"{group} {username}", facts=BY_SERVER)


def _admitted(known: KnownCaller | None) -> KnownCaller:
    """Raises UserNotFound, UserInactive, InvalidToken."""
    if known is None:
        raise UserNotFound
    if not known.is_active:
        raise UserInactive
    if known.is_revoked:
        raise InvalidToken
    return known
