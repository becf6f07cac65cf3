"""Links between users and identities of other issuers, made and ended by administrators."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from queryserver.db.accounts import IdentityRepository
from queryserver.domain.errors.base import InvalidParameter, NameTaken
from queryserver.domain.identities import MAX_LENGTH, ExternalIdentity, identity_of
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.identities import LinkedIdentity


@dataclass(frozen=True, slots=True)
class IdentityRules:
    """The case rule, and the issuers of the settings; None: tokens of any issuer are accepted."""

    usernames: UsernameRule
    issuers: Collection[str] | None

    def identity(self, name: str, issuer: str, subject: str | None = None) -> ExternalIdentity:
        """The subject of an issuer; without a subject the name of the user is it.

        Raises InvalidUsername, InvalidParameter: no such issuer, or no legal subject.
        """
        username = self.usernames.read(name)
        if self.issuers is not None and issuer not in self.issuers:
            known = ", ".join(sorted(self.issuers)) or "none"
            raise InvalidParameter(f"issuer: {issuer} is not in the settings; they name {known}.")
        identity = identity_of(issuer, username.shown if subject is None else subject)
        if not identity.subject.strip() or len(identity.subject) > MAX_LENGTH or not identity.subject.isprintable():
            raise InvalidParameter(f"subject: it must be a text of at most {MAX_LENGTH} printable characters.")
        return identity


class Identities:
    """Names of users are read by the case rule."""

    def __init__(self, records: IdentityRepository, rules: IdentityRules) -> None:
        self._records = records
        self._rules = rules

    async def link(self, name: str, issuer: str, subject: str | None = None) -> ExternalIdentity:
        """Make the subject of an issuer this user from its next call on. Without a subject the name is it.

        Raises InvalidUsername, InvalidParameter (no such issuer, or no legal subject), unknown_user, NameTaken.
        """
        identity = self._rules.identity(name, issuer, subject)
        if not await self._records.link(self._rules.usernames.read(name).key, identity):
            raise NameTaken(f"The subject {identity.subject} is linked to another user already.")
        return identity

    async def unlink(self, name: str | None, *, issuer: str | None = None, subject: str | None = None) -> int:
        """End the links of a user, or of all users with an issuer; how many there were. Raises InvalidUsername."""
        key = None if name is None else self._rules.usernames.read(name).key
        if issuer is not None and subject is not None:
            subject = identity_of(issuer, subject).subject
        return await self._records.unlink(key, issuer=issuer, subject=subject)

    async def all(self, name: str | None = None) -> Sequence[LinkedIdentity]:
        """The links of one user, or of all. Raises InvalidUsername."""
        return await self._records.identities(None if name is None else self._rules.usernames.read(name).key)
