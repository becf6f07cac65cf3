"""Callers, rights, user names, external identities, and the call data passed to login back ends and plug-ins."""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias
from uuid import UUID

from queryserver.errors.base import InvalidUsername, invalid_right

if TYPE_CHECKING:
    from queryserver.platform.settings.desktop import AuthSettings

ADMIN = "admin"
DOWNLOAD = "download"
IMPORTER = "importer"
METADATA = "metadata"
IMPERSONATE = "security.impersonate"
ANY_CONNECTOR = "connector:*"


@dataclass(frozen=True, slots=True)
class ExternalToken:
    """An external issuer's token, sent with a call (Contract platform 3.9). Never logged."""

    text: str = field(repr=False)
    expires_at: int
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SealedToken:
    """An encrypted external token, stored with the statement that needs it."""

    content: bytes = field(repr=False)
    expires_at: int
    """Seconds since 1970; the token is not used after this time."""


BigNumbers: TypeAlias = Literal["number", "text"]
"""How responses represent numbers that may exceed the precision of a double."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """A user's defaults for options that a call does not specify."""

    big_numbers: BigNumbers = "number"


def preferences_of(stored: Mapping[str, Any]) -> Preferences:
    """Read stored preferences. Values unknown to this version are ignored."""
    big_numbers: object = stored.get("big_numbers")
    return Preferences(big_numbers="text") if big_numbers == "text" else Preferences()


class Scope(StrEnum):
    """A group of calls that an API token permits. operations.yaml names the scope of each call. `query` includes
    `query:read`; no other scope implies another.
    """

    QUERY = "query"
    QUERY_READ = "query:read"
    """Reads metadata and results, and runs statements that change nothing."""
    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    IMPORT = "import"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiTokenLimits:
    """The limits of the API token sent with a call, which restrict the rights of its user."""

    id: UUID
    name: str
    scopes: frozenset[Scope]
    connectors: frozenset[str] | None
    """Keys of the connectors that the token may use; None for all that the user may use."""
    digest: bytes = field(repr=False, compare=False)
    """The digest by which the token is looked up again."""
    is_of_administrator: bool = False
    max_estimated_bytes: int | None = None
    """The most bytes that an engine may expect a statement to read (Contract editor 4.10)."""

    @property
    def stored(self) -> Mapping[str, Any]:
        """The limits in the form stored with a statement."""
        connectors = None if self.connectors is None else sorted(self.connectors)
        return {
            "id": str(self.id),
            "name": self.name,
            "scopes": sorted(self.scopes),
            "connectors": connectors,
            "max_estimated_bytes": self.max_estimated_bytes,
        }

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Read limits stored by `stored`. Scopes unknown to this version are dropped."""
        scopes = frozenset(scope for scope in Scope if scope in stored["scopes"])
        connectors = None if stored["connectors"] is None else frozenset[str](stored["connectors"])
        most_bytes = stored.get("max_estimated_bytes")  # absent in records of older programs
        return cls(UUID(stored["id"]), stored["name"], scopes, connectors, b"", max_estimated_bytes=most_bytes)


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user with the combined rights of all the user's groups (Contract platform 4.3)."""

    id: int
    username: str
    is_admin: bool = False
    rights: frozenset[str] = field(default_factory=frozenset[str])
    groups: frozenset[str] = field(default_factory=frozenset[str])
    connectors_version: int = field(default=0, compare=False)
    """Version of the stored connectors when the rights were read; this process must not use an older version."""
    external_token: ExternalToken | None = field(default=None, compare=False)
    """Passed to engines that accept the caller's token instead of a login; None if the call has no external token."""
    token_ids: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """The ids by which the call's token can be revoked: family and token; empty strings if not applicable."""
    token_epoch: int | None = field(default=None, compare=False, repr=False)
    """The epoch of the own token; None if the call has no own token."""
    preferences: Preferences = field(default=Preferences(), compare=False)
    api_token: ApiTokenLimits | None = None
    """None if the call has no API token."""

    def may(self, right: str) -> bool:
        """Return whether the user has the right. Administrators have all rights."""
        return self.is_admin or right in self.rights

    def may_use(self, connector_right: str) -> bool:
        """Return whether the user's rights (or `connector:*`) and the call's token permit the stored connector."""
        if not self.reaches(connector_right.removeprefix("connector:")):
            return False
        return self.is_admin or connector_right in self.rights or ANY_CONNECTOR in self.rights

    def is_in_any(self, groups: Collection[str]) -> bool:
        """Return whether the user is in one of the groups. Administrators count as members of all groups."""
        is_administrator = self.is_admin or (self.api_token is not None and self.api_token.is_of_administrator)
        return is_administrator or not self.groups.isdisjoint(groups)

    def reaches(self, connector: str) -> bool:
        """Return whether the call's token permits the connector."""
        return self.reached is None or connector in self.reached

    @property
    def reached(self) -> Collection[str] | None:
        """The connectors to which the call's token is limited; None if it has no such limit."""
        return None if self.api_token is None else self.api_token.connectors

    def has_scope(self, scope: Scope) -> bool:
        """Return whether the call's token has the scope. Tokens other than API tokens have all scopes."""
        if self.api_token is None or scope in self.api_token.scopes:
            return True
        return scope is Scope.QUERY_READ and Scope.QUERY in self.api_token.scopes

    def narrowed(self, token: ApiTokenLimits) -> Self:
        """Return the user with the rights restricted by the API token.

        If the token lacks the scope `admin`, an administrator has every right except administration and impersonation.
        The scope has no effect if the user is no longer an administrator.
        """
        if self.is_admin and Scope.ADMIN in token.scopes:
            return replace(self, api_token=token)
        every_right = NAMED_RIGHTS - {IMPERSONATE} if self.is_admin else frozenset[str]()
        return replace(
            self,
            is_admin=False,
            rights=(self.rights | every_right) - {ADMIN},
            api_token=replace(token, scopes=token.scopes - {Scope.ADMIN}, is_of_administrator=self.is_admin),
        )


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """The caller as identified by a login back end or an authenticator."""

    username: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    groups: Sequence[str] | None = None
    """Group names that replace all of the user's groups; None leaves the groups unchanged."""


STORE_RIGHTS = ("filebrowser.s3_access", "filebrowser.abfs_access", "filebrowser.ofs_access", "filebrowser.file_access")
"""Rights that each grant access to one file store. HDFS needs no right."""

NAMED_RIGHTS = frozenset({ADMIN, ANY_CONNECTOR, DOWNLOAD, IMPERSONATE, IMPORTER, METADATA, *STORE_RIGHTS})
"""All rights but those on single connectors, `connector:<id>`."""
# Canonical form only, since grants are compared as strings. Ids are bigints.
_ONE_CONNECTOR = re.compile(r"connector:[1-9][0-9]{0,18}", re.ASCII)


def read_right(text: str) -> str:
    """Validate the name of a right. Raises invalid_right."""
    if text in NAMED_RIGHTS or _ONE_CONNECTOR.fullmatch(text):
        return text
    raise invalid_right(f"There is no right {text[:100]}.")


MAX_LENGTH = 150

_ALLOWED = re.compile(r"[\w@.+-]+")
_ONLY_DOTS = re.compile(r"\.+")


@dataclass(frozen=True, slots=True)
class Username:
    """A valid user name in its display form, and the key by which names are compared."""

    shown: str
    key: str


@dataclass(frozen=True, slots=True)
class UsernameRule:
    """The rule for upper and lower case in user names, from the settings."""

    ignore_case: bool = True
    force_lowercase: bool = True
    force_uppercase: bool = False

    @classmethod
    def of(cls, auth: "AuthSettings") -> Self:
        return cls(auth.ignore_username_case, auth.force_username_lowercase, auth.force_username_uppercase)

    def read(self, text: str) -> Username:
        """Normalize a name, ignoring surrounding whitespace. Raises InvalidUsername."""
        # NFKC, as in directories. Otherwise full-width letters would give additional spellings, and guesses, per name.
        name = unicodedata.normalize("NFKC", text.strip())
        if self.force_lowercase:
            name = name.lower()
        elif self.force_uppercase:
            name = name.upper()
        if not (0 < len(name) <= MAX_LENGTH and _ALLOWED.fullmatch(name)) or _ONLY_DOTS.fullmatch(name):
            raise InvalidUsername
        return Username(name, name.casefold() if self.ignore_case else name)

    def read_exact(self, text: str) -> Username:
        """Normalize a name like `read`, but require that it is already in normal form. Raises InvalidUsername.

        A name that differs from its normal form, for example in width, case or whitespace, may belong to a different
        person at another issuer, so it must not map to the user with the normalized name.
        """
        name = self.read(text)
        if name.shown != text:
            raise InvalidUsername
        return name


LDAP = "ldap"
"""The issuer name of identities from the LDAP directory."""
ANY = "*"
"""The configured issuer or audience that accepts any value."""

IDENTITIES_MAX_LENGTH = 255
"""The maximum length of an issuer or subject, in characters."""


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    """A subject of an issuer. Both strings are compared case-sensitively; see `identity_of`."""

    issuer: str
    subject: str


def identity_of(issuer: str, subject: str) -> ExternalIdentity:
    """Return the identity of a subject. LDAP directories ignore case, so `Ana` and `ana` are one identity there."""
    return ExternalIdentity(issuer, subject.casefold() if issuer == LDAP else subject)


def jwt_issuer(issuer: str) -> str:
    """Return the issuer name of identities from tokens whose claim `iss` is `issuer`."""
    return f"jwt:{issuer}"


def is_import_path(name: str) -> bool:
    """Return whether a name in the settings is the import path of a plug-in. Built-in names have no dot or colon."""
    return "." in name or ":" in name


def plug_in_issuer(path: str) -> str:
    """Return the issuer name of a `desktop.auth` plug-in; the same for `package.Class` and `package:Class`."""
    return path.replace(":", ".")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The call data passed to login back ends."""

    client: str
    """The client address: the peer's, or the one that a trusted proxy reports; `unknown` if it is not known."""


class LoginBackend(Protocol):
    """Checks a user name and password. Back ends are tried in the order of `desktop.auth.backend`."""

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """Return the user, or None to try the next back end.

        AuthenticationFailed ends the search; any other exception means that the back end is unavailable.
        """
        ...


class CallHeaders(Protocol):
    """A call's headers by case-insensitive name."""

    def get(self, name: str, /) -> str | None: ...

    def getlist(self, name: str, /) -> list[str]: ...


class AuthRequest(Protocol):
    """The call data passed to authenticators; excludes the body."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Lower-case names with unmodified values."""
        ...

    @property
    def method(self) -> str: ...

    @property
    def url(self) -> str:
        """The full URL, including the query."""
        ...

    @property
    def headers(self) -> CallHeaders: ...

    @property
    def client(self) -> str:
        """The client address: the peer's, or the one that a trusted proxy reports; `unknown` if it is not known."""
        ...

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is in `desktop.trusted_proxies`. If not, headers set by a proxy cannot be trusted (T19)."""
        ...
