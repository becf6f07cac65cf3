"""Changes of users and groups by administrators through the API (Contract platform 6.6, 6.7).

The commands make the same changes with `Accounts` and `Groups`, and leave the same audit events.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from queryserver import errors
from queryserver.identity import model
from queryserver.identity.repository import AccountChange, AccountDetails
from queryserver.identity.users import Accounts, GroupGrants, Groups
from queryserver.platform.logs import AUDIT

MAX_NAME_LENGTH = 150
MAX_EMAIL_LENGTH = 254
"""The longest address that mail servers accept (RFC 5321 4.5.3.1.3)."""


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user to be created. Service accounts have no password, all other users need one."""

    person: model.AuthenticatedUser
    password: str | None = field(default=None, repr=False)
    is_admin: bool = False
    is_service_account: bool = False


@dataclass(frozen=True, slots=True)
class UserChange:
    """Properties of a user to change; None leaves a property unchanged."""

    first_name: str | None = None
    last_name: str | None = None
    email: str | None = None
    is_active: bool | None = None
    is_admin: bool | None = None
    """The user's own flag, regardless of groups."""
    groups: tuple[str, ...] | None = None
    """Names that replace all of the user's groups."""
    password: str | None = field(default=None, repr=False)

    @property
    def operations(self) -> Sequence[str]:
        """The names of the audit events of the change, without those of single groups."""
        found = list[str]()
        if any(one is not None for one in (self.first_name, self.last_name, self.email, self.groups)):
            found.append("user.update")
        if self.is_active is not None:
            found.append("user.enable" if self.is_active else "user.disable")
        if self.is_admin is not None:
            found.append("user.make_admin" if self.is_admin else "user.unmake_admin")
        if self.password is not None:
            found.append("user.set_password")
        return found


class UserAdministration:
    """Shows and changes users and groups. Each change is audited, also if it is refused; passwords never are.

    `by` is the administrator who makes the change. User names are normalized by UsernameRule; invalid names raise
    InvalidUsername. All changes raise InsufficientScope for API tokens that lack a scope, and DatabaseUnavailable.
    """

    def __init__(self, accounts: Accounts, groups: Groups) -> None:
        self._accounts = accounts
        self._groups = groups
        self.user = accounts.details

    @property
    def default_group(self) -> str:
        """The name of the group that new users join."""
        return self._groups.default

    async def groups(self) -> Sequence[GroupGrants]:
        """Return all groups sorted by name."""
        return await self._groups.grants()

    async def create(self, by: model.User, new: NewUser) -> AccountDetails:
        """Create a user in the default group and in the given groups.

        Raises MissingParameter, InvalidParameter, InvalidPassword, NameTaken, UnknownGroup.
        """
        name = new.person.username
        operations = ["user.create", "user.make_admin"] if new.is_admin else ["user.create"]
        with _audited(by, [(one, name) for one in operations]):
            _require_every_scope(by)
            if new.is_service_account and new.password is not None:
                raise errors.InvalidParameter("password: a service account has only API tokens, and no password.")
            if not new.is_service_account and new.password is None:
                raise errors.MissingParameter("password is required, except for a service account.")
            _require_texts(new.person.first_name, new.person.last_name, new.person.email)
            made = await self._accounts.create(
                new.person, new.password or "", is_admin=new.is_admin, is_service_account=new.is_service_account
            )
        return await self._accounts.details(made.shown)

    async def update(self, by: model.User, name: str, change: UserChange) -> AccountDetails:
        """Make all of these changes, or none if one is refused.

        A new password, and disabling the user, invalidate all tokens of the user. Raises unknown_user,
        InvalidParameter, InvalidPassword, last_administrator, UnknownGroup, service_account, external_user.
        """
        with _audited(by, [(one, name) for one in change.operations]):
            _require_every_scope(by)
            _require_texts(change.first_name or "", change.last_name or "", change.email or "")
            # The name is checked first, because hashing a password is slow.
            shown = (await self._accounts.details(name)).account.username
            memberships = await self._accounts.update(
                name,
                AccountChange(
                    first_name=change.first_name,
                    last_name=change.last_name,
                    email=change.email,
                    is_active=change.is_active,
                    is_admin=change.is_admin,
                    password_hash=None
                    if change.password is None
                    else await self._accounts.hashed(change.password, shown),
                    groups=change.groups,
                    ends_tokens=change.password is not None or change.is_active is False,
                ),
            )
        for operation, groups in (("group.add_member", memberships.joined), ("group.remove_member", memberships.left)):
            for group in groups:
                AUDIT.record(by.username, operation, f"{group} {shown}")
        return await self._accounts.details(name)

    async def revoke_tokens(self, by: model.User, name: str) -> AccountDetails:
        """Invalidate all tokens of a user: logins and API tokens. Raises unknown_user."""
        with _audited(by, [("user.revoke_tokens", name)]):
            await self._accounts.end_tokens(name)
        return await self._accounts.details(name)

    async def create_group(self, by: model.User, name: str, rights: Collection[str]) -> GroupGrants:
        """Create a group with these rights. Raises invalid_group_name, invalid_right, NameTaken."""
        with _audited(by, [("group.create", name), *(("group.grant", f"{name} {right}") for right in rights)]):
            _require_every_scope(by)
            await self._groups.create(name, rights)
        return await self._group(name)

    async def change_rights(
        self, by: model.User, name: str, *, grant: Collection[str], revoke: Collection[str]
    ) -> GroupGrants:
        """Grant and revoke rights of a group together.

        Raises InvalidParameter (a right in both), invalid_right, UnknownGroup, last_administrator.
        """
        events = [("group.grant", right) for right in grant] + [("group.ungrant", right) for right in revoke]
        with _audited(by, [(operation, f"{name} {right}") for operation, right in events]):
            _require_every_scope(by)
            if both := sorted({*grant} & {*revoke}):
                raise errors.InvalidParameter(f"grant and revoke must not both contain {both[0][:100]}.")
            await self._groups.change_rights(name, grant=grant, revoke=revoke)
        return await self._group(name)

    async def delete_group(self, by: model.User, name: str) -> None:
        """Delete a group. Raises UnknownGroup, default_group_kept, last_administrator."""
        with _audited(by, [("group.delete", name)]):
            _require_every_scope(by)
            await self._groups.delete(name)

    async def _group(self, name: str) -> GroupGrants:
        [group] = await self._groups.grants(name)
        return group


@contextmanager
def _audited(by: model.User, events: Sequence[tuple[str, str]]) -> Generator[None]:
    """Write an event for each pair of operation and subject, all with the outcome of the context."""
    with ExitStack() as stack:
        for operation, subject in events:
            stack.enter_context(AUDIT.event(by.username, operation, subject))
        yield


def _require_every_scope(by: model.User) -> None:
    """Refuse API tokens that lack a scope. Raises InsufficientScope.

    A login with a new password, a new administrator, and a member of a group with new rights are not limited to the
    scopes of the token, so a token could give itself through them what it lacks.
    """
    for scope in model.Scope:
        if not by.has_scope(scope):
            raise errors.InsufficientScope(
                scope, f"An API token without the scope {scope} cannot change users and groups, which have all scopes."
            )


def _require_texts(first_name: str, last_name: str, email: str) -> None:
    """Raises InvalidParameter."""
    for field_name, text, most in (
        ("first_name", first_name, MAX_NAME_LENGTH),
        ("last_name", last_name, MAX_NAME_LENGTH),
        ("email", email, MAX_EMAIL_LENGTH),
    ):
        if len(text) > most or not text.isprintable() or text != text.strip():
            raise errors.InvalidParameter(
                f"{field_name} must have at most {most} printable characters, without leading or trailing blanks."
            )
