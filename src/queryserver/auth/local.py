"""The login back end `local`: passwords in the service database."""

from queryserver.db.accounts import AccountRepository
from queryserver.domain.errors.base import InvalidUsername
from queryserver.domain.user import AuthenticatedUser
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.auth import Passwords, RequestInfo


class LocalLogin:
    """See `interfaces.auth.LoginBackend`. A refusal takes the same work whatever its reason (Rule T15)."""

    def __init__(self, records: AccountRepository, passwords: Passwords, rule: UsernameRule) -> None:
        self._records = records
        self._passwords = passwords
        self._rule = rule

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user of that name and password."""
        del request
        try:
            stored = await self._records.login_of(self._rule.read(username).key)
        except InvalidUsername:
            stored = None
        known_hash = stored.password_hash if stored else None
        if not await self._passwords.verify(known_hash, password) or stored is None or not stored.is_active:
            return None
        if known_hash and self._passwords.is_outdated(known_hash):
            await self._records.replace_hash(stored.user_id, old=known_hash, new=await self._passwords.hash(password))
        return AuthenticatedUser(stored.username)
