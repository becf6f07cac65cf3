"""Grants results to users and groups, revokes grants, and opens granted results (Contract sharing)."""

import asyncio
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from queryserver.connectors.model import ResultSharing
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import InvalidParameter, InvalidUsername, MissingParameter, UnknownGroup, unknown_user
from queryserver.errors.statements import no_result_to_share, sharing_disabled, sharing_not_allowed, too_many_grants
from queryserver.formats.arrow import Column
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import MAX_LENGTH, User, Username, UsernameRule
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements.grant_repository import (
    FOREIGN,
    MAX_GRANTS_PER_RESULT,
    UNKNOWN,
    Grant,
    GrantedTo,
    Grantee,
    GrantRecords,
    ReadSources,
)
from queryserver.statements.model import StatementStatus
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementAccess

_SHARE = "result.share"
_REVOKE = "result.revoke_share"
_NAMES_PER_EVENT = 50


@dataclass(frozen=True, slots=True)
class NewGrant:
    """The users and groups to whom a result is to be granted, until when, and under which title."""

    users: Sequence[str]
    groups: Sequence[str]
    until: datetime | None
    title: str


@dataclass(frozen=True, slots=True)
class ResultGrants:
    """The valid grants of a result."""

    status: StatementStatus
    sharing: ResultSharing
    grantees: Sequence[Grantee]
    changed: int = 0
    """How many grants the call has written or deleted."""


@dataclass(frozen=True, slots=True)
class SharedResult:
    """A result as its link shows it. `grant` is None if the caller is the owner."""

    status: StatementStatus
    columns: tuple[Column, ...]
    grant: Grant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Grants, revokes, lists and opens shared results."""

    grants: GrantRecords
    access: StatementAccess
    connectors: Connectors
    users: CallerRepository
    usernames: UsernameRule
    limits: EditorSettings
    is_enabled: bool

    async def share(self, user: User, operation_id: UUID, new: NewGrant) -> ResultGrants:
        """Grant the result of a user's own operation to users and groups. Changes existing grants.

        Raises sharing_disabled, OperationNotFound, PermissionDenied, MissingParameter, InvalidParameter, unknown_user,
        UnknownGroup, sharing_not_allowed, no_result_to_share, too_many_grants.
        """
        with self._audited(user, _SHARE, operation_id, new.users, new.groups):
            self._require_enabled()
            status = (await self.access.own_record(user, operation_id)).status
            if not (new.users or new.groups):
                raise MissingParameter("users or groups is required.")
            until = self._end_of(new.until)
            sharing, sources = await self._sharing_of(status)
            to = await self._named(new.users, new.groups)
            if status.user_id in to.users:
                raise InvalidParameter("users: the result is yours, so it cannot be granted to you.")
            await self._require_connectors(status, sources, to.users)
            _require_result(status)
            granted = await self.grants.grant(status.id, to, until=until, title=new.title)
            if not granted:
                await self._named(new.users, new.groups)  # raises if a user or group has disappeared meanwhile
                raise too_many_grants(f"A result can be granted to at most {MAX_GRANTS_PER_RESULT} users and groups.")
            return ResultGrants(status, sharing, await self.grants.of_statement(status.id), granted)

    async def revoke(self, user: User, operation_id: UUID, users: Sequence[str], groups: Sequence[str]) -> ResultGrants:
        """Revoke grants of a result: those to these users and groups, or all if none is named. Idempotent.

        Administrators may revoke grants too. Raises OperationNotFound, unknown_user, UnknownGroup.
        """
        with self._audited(user, _REVOKE, operation_id, users, groups):
            status = await self.access.status_for_cancellation(user, operation_id)
            to = await self._named(users, groups, is_active=None) if users or groups else None
            revoked = await self.grants.revoke(status.id, to)
            return await self._grants_of(status, changed=revoked)

    async def of_operation(self, user: User, operation_id: UUID) -> ResultGrants:
        """Return the valid grants of a result to its owner or an administrator. Raises OperationNotFound."""
        return await self._grants_of(await self.access.status_for_cancellation(user, operation_id))

    async def received(
        self, user: User, *, page: int, limit: int
    ) -> tuple[int, Sequence[tuple[Grant, StatementStatus]]]:
        """Return the number of results that the user may read through grants, and one page, newest grant first."""
        if not self.is_enabled:
            return 0, ()
        connectors = self.connectors.receivable(user)
        return await self.grants.received(user.id, connectors, offset=(page - 1) * limit, limit=limit)

    async def open(self, user: User, operation_id: UUID) -> SharedResult:
        """Return a result that the user owns or that is granted to the user.

        Raises OperationNotFound, PermissionDenied.
        """
        record = await self.access.result_record(user, operation_id)
        if record.status.user_id == user.id:
            return SharedResult(record.status, record.columns or (), None)
        return SharedResult(record.status, record.columns or (), await self.access.grant(user, record.status))

    async def _grants_of(self, status: StatementStatus, *, changed: int = 0) -> ResultGrants:
        sharing = self.connectors.result_sharing(status.connector)
        return ResultGrants(status, sharing, await self.grants.of_statement(status.id), changed)

    def _require_enabled(self) -> None:
        if not self.is_enabled:
            raise sharing_disabled()

    def _end_of(self, until: datetime | None) -> datetime:
        """Return when the grant ends. Raises InvalidParameter."""
        now = datetime.now(UTC)
        if until is None:
            return now + self.limits.share_default
        if until <= now:
            raise InvalidParameter("until must be in the future.")
        # A minute, because clients compute the latest date by their own clocks.
        if until > now + self.limits.share_max + timedelta(minutes=1):
            raise InvalidParameter(
                f"until must be at most {self.limits.share_max_days} days away (`editor.share_max_days`)."
            )
        return until

    async def _sharing_of(self, status: StatementStatus) -> tuple[ResultSharing, ReadSources]:
        """Return the setting of the connector, and what the statement has read.

        Raises sharing_not_allowed if no user may receive this result.
        """
        sharing = self.connectors.result_sharing(status.connector)
        if sharing is ResultSharing.NEVER:
            raise sharing_not_allowed(
                "Results of this connector cannot be shared: its setting share_results is never, which is the default"
                " if the data source knows its users."
            )
        sources = await self.grants.sources(status.id)
        if FOREIGN in sources.connectors:
            raise sharing_not_allowed("This result cannot be shared: its statement has read another user's result.")
        if UNKNOWN in sources.connectors:
            raise sharing_not_allowed(
                "This result cannot be shared: it is not known what its statement has read, because an earlier version"
                " of this service has run it. Run the statement again."
            )
        settings = {sharing, *map(self.connectors.result_sharing, sources.connectors)}
        if ResultSharing.NEVER in settings:
            raise sharing_not_allowed(
                "This result cannot be shared: its statement has read a result of a connector whose setting"
                " share_results is never."
            )
        if sources.own_rights and settings != {ResultSharing.ANYONE}:
            raise sharing_not_allowed(
                "This result cannot be shared: its statement has read files with your rights or logged in with your"
                " credentials, and share_results of its connector is not anyone."
            )
        return sharing, sources

    async def _named(self, users: Sequence[str], groups: Sequence[str], *, is_active: bool | None = True) -> GrantedTo:
        """Return the ids of users and groups. Raises unknown_user, UnknownGroup."""
        keys = {username.key: username.shown for username in map(self._username, users)}
        known = await self.grants.users(keys)
        for key, name in keys.items():
            if key not in known or (is_active and not known[key].is_active):
                raise unknown_user(name)
        ids = await self.grants.groups(groups)
        for name in groups:
            if name not in ids:
                raise UnknownGroup(_shortened(name))
        return GrantedTo([one.id for one in known.values()], list(ids.values()))

    def _username(self, name: str) -> Username:
        """Return the normalized name, or an invalid name as it is, because no user has it."""
        try:
            return self.usernames.read(name)
        except InvalidUsername:
            return Username(_shortened(name), _shortened(name))

    @contextmanager
    def _audited(
        self, user: User, operation: str, operation_id: UUID, users: Sequence[str], groups: Sequence[str]
    ) -> Generator[None]:
        """Write audit events when the context ends: several if there are many names, because long lines are cut."""
        named = [("to_users", name) for name in dict.fromkeys(self._username(name).shown for name in users)]
        named += [("to_groups", name) for name in dict.fromkeys(map(_shortened, groups))]
        with ExitStack() as stack:
            for first in reversed(range(0, max(len(named), 1), _NAMES_PER_EVENT)):
                some = named[first : first + _NAMES_PER_EVENT]
                facts = {
                    field: ", ".join(name for kind, name in some if kind == field)
                    for field in ("to_users", "to_groups")
                }
                event = AUDIT.event(user.username, operation, facts={"operation_id": str(operation_id), **facts})
                stack.enter_context(event)
            yield

    async def _require_connectors(
        self, status: StatementStatus, sources: ReadSources, user_ids: Collection[int]
    ) -> None:
        """Raise sharing_not_allowed if one of the users may not receive results of the connectors."""
        for receiver in await asyncio.gather(*map(self.users.user, user_ids)):
            if receiver is not None and not self.access.may_receive(receiver, status.connector, sources):
                raise sharing_not_allowed(
                    f"{receiver.username} may not use a connector from which the rows come, and its setting"
                    " share_results is users_of_connector."
                )


def _require_result(status: StatementStatus) -> None:
    """Raise no_result_to_share unless the operation has a result or may still get one."""
    if status.state in {*ACTIVE, StatementState.AVAILABLE}:
        return
    if status.is_script and any(part.state is StatementState.AVAILABLE for part in status.parts):
        return
    raise no_result_to_share(f"The operation has no result: {status.state.wire_status}.")


def _shortened(name: str) -> str:
    """Return the name, or its beginning if it is longer than any name of a user or group."""
    return name if len(name) <= MAX_LENGTH else f"{name[:MAX_LENGTH]}…"
