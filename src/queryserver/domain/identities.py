"""Who a user is at another issuer: a key server, a directory, or a class of `desktop.auth`."""

from dataclasses import dataclass

LDAP = "ldap"
"""The issuer of persons of the directory."""
_JWT = "jwt:"

MAX_LENGTH = 255
"""Of a subject, in characters."""


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    """A subject of an issuer. Both are compared exactly; see `identity_of`."""

    issuer: str
    subject: str


def identity_of(issuer: str, subject: str) -> ExternalIdentity:
    """The identity that an issuer means by a subject. A directory compares names without case: `Ana` is `ana` there."""
    return ExternalIdentity(issuer, subject.casefold() if issuer == LDAP else subject)


def jwt_issuer(issuer: str) -> str:
    """The issuer of tokens whose claim `iss` is `issuer`."""
    return _JWT + issuer


def plug_in_issuer(path: str) -> str:
    """The issuer that a class of `desktop.auth` is, however its path is written."""
    return path.replace(":", ".")
