"""Users and their administration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from queryserver.db.accounts import AccountRepository
from queryserver.domain.errors.base import InvalidPassword, unknown_user
from queryserver.domain.identities import ExternalIdentity
from queryserver.domain.usernames import Username, UsernameRule
from queryserver.interfaces.accounts import Account, NewAccount
from queryserver.interfaces.auth import Passwords
from queryserver.services.throttling import LoginThrottle

MAX_PASSWORD_BYTES = 1024
"""What a login takes (Contract platform 3.2)."""

DEFAULT_RIGHTS = (
    "filebrowser.s3_access",
    "filebrowser.abfs_access",
    "filebrowser.ofs_access",
    "filebrowser.file_access",
    "importer",
    "download",
    "metadata",
)
"""What the default group may when it is made (Contract platform 4.3)."""


@dataclass(frozen=True, slots=True)
class AccountRules:
    """Settings that new users and passwords obey."""

    usernames: UsernameRule
    default_group: str
    password_min_length: int


@dataclass(frozen=True, slots=True)
class Person:
    """What is known of a new user beside the name."""

    email: str = ""
    first_name: str = ""
    last_name: str = ""
    groups: tuple[str, ...] = ()


class Accounts:
    """Makes and changes users. Names are read by the case rule; a wrong one raises InvalidUsername."""

    def __init__(
        self, records: AccountRepository, passwords: Passwords, throttle: LoginThrottle, rules: AccountRules
    ) -> None:
        self._records = records
        self._passwords = passwords
        self._throttle = throttle
        self._rules = rules

    async def ensure_default_group(self) -> None:
        """The group that new users join, with its first rights; one that exists keeps the rights it has."""
        await self._records.ensure_group(self._rules.default_group, DEFAULT_RIGHTS)

    async def create(
        self, name: str, password: str, *, is_admin: bool = False, person: Person | None = None
    ) -> Username:
        """Make a user. Raises InvalidPassword, NameTaken, UnknownGroup."""
        account = await self._new(name, password, is_admin=is_admin, person=person or Person())
        await self._records.create(account, default_group=self._rules.default_group)
        return account.username

    async def create_linked(
        self, name: str, identity: ExternalIdentity, *, is_admin: bool = False, person: Person | None = None
    ) -> Username:
        """Make a user without a password who is an identity of another issuer.

        Raises NameTaken, UnknownGroup, NameTaken.
        """
        account = self._account(name, None, is_admin=is_admin, person=person or Person())
        linked = replace(account, identity=identity, by_administrator=True)
        await self._records.create(linked, default_group=self._rules.default_group)
        return linked.username

    async def create_first(self, name: str, password: str) -> bool:
        """Make an administrator when there is no user at all; of several at once one succeeds.

        Raises InvalidPassword.
        """
        account = await self._new(name, password, is_admin=True, person=Person())
        return await self._records.create_first(account, default_group=self._rules.default_group)

    async def all(self) -> Sequence[Account]:
        """Every user, by name."""
        return await self._records.all()

    async def disable(self, name: str) -> None:
        """Nobody gets in as this user any more, and all tokens end. Raises unknown_user, last_administrator."""
        _require(name, await self._records.set_active(self._key(name), active=False))

    async def enable(self, name: str) -> None:
        """The user may log in again; old tokens stay dead. Raises unknown_user."""
        _require(name, await self._records.set_active(self._key(name), active=True))

    async def set_admin(self, name: str, *, admin: bool) -> None:
        """Give or take the administrator flag. Raises unknown_user, last_administrator."""
        _require(name, await self._records.set_admin(self._key(name), admin=admin))

    async def set_password(self, name: str, password: str) -> None:
        """Replace the password; all tokens end. Raises unknown_user, InvalidPassword."""
        password_hash = await self._hash(password)
        _require(name, await self._records.set_password(self._key(name), password_hash))

    async def unlock(self, name: str) -> None:
        """Forget the failed logins of the name, which need not exist."""
        await self._throttle.unlock(self._key(name))

    async def end_tokens(self, name: str) -> None:
        """End all tokens of a user. Raises unknown_user."""
        _require(name, bool(await self._records.end_tokens(self._key(name))))

    async def end_all_tokens(self) -> int:
        """End all tokens of everybody; how many users that were."""
        return await self._records.end_tokens(None)

    async def _new(self, name: str, password: str, *, is_admin: bool, person: Person) -> NewAccount:
        self._rules.usernames.read(name)
        return self._account(name, await self._hash(password), is_admin=is_admin, person=person)

    def _account(self, name: str, password_hash: str | None, *, is_admin: bool, person: Person) -> NewAccount:
        return NewAccount(
            self._rules.usernames.read(name),
            password_hash,
            is_admin=is_admin,
            first_name=person.first_name,
            last_name=person.last_name,
            email=person.email,
            groups=person.groups,
        )

    async def _hash(self, password: str) -> str:
        if len(password) < self._rules.password_min_length:
            message = f"The password must have at least {self._rules.password_min_length} characters."
            raise InvalidPassword(message)
        if len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD_BYTES:
            message = f"The password must have at most {MAX_PASSWORD_BYTES} bytes."
            raise InvalidPassword(message)
        return await self._passwords.hash(password)

    def _key(self, name: str) -> str:
        return self._rules.usernames.read(name).key


def _require(name: str, found: bool) -> None:
    if not found:
        raise unknown_user(name)
