"""Callers, rights, user names, external identities, and the view of calls for back ends and plug-ins."""

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
    """Another issuer's token, sent with a call (Contract platform 3.9). Never logged."""

    text: str = field(repr=False)
    expires_at: int
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SealedToken:
    """An external token as stored with the statement that needs it."""

    content: bytes = field(repr=False)
    expires_at: int
    """Seconds since 1970; the token is not used from then on."""


BigNumbers: TypeAlias = Literal["number", "text"]
"""How responses show numbers that may exceed the precision of a double."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """A user's preferences, which apply to calls that do not state them."""

    big_numbers: BigNumbers = "number"


def preferences_of(stored: Mapping[str, Any]) -> Preferences:
    """Read stored preferences; values unknown to this version count as absent."""
    big_numbers: object = stored.get("big_numbers")
    return Preferences(big_numbers="text") if big_numbers == "text" else Preferences()


class Scope(StrEnum):
    """A permitted use of an API token. operations.yaml names each call's scope; no scope implies another."""

    QUERY = "query"
    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    IMPORT = "import"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiTokenLimits:
    """The API token sent with a call, which narrows the rights of its user."""

    id: UUID
    name: str
    scopes: frozenset[Scope]
    connectors: frozenset[str] | None
    """Keys of the connectors that the token may use; None for all that the user may use."""
    digest: bytes = field(repr=False, compare=False)
    """The digest by which the token is read again."""
    is_of_administrator: bool = False

    @property
    def stored(self) -> Mapping[str, Any]:
        """Convert the limits to the form stored with a statement."""
        connectors = None if self.connectors is None else sorted(self.connectors)
        return {"id": str(self.id), "name": self.name, "scopes": sorted(self.scopes), "connectors": connectors}

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Read limits from a result of `stored`. Drops scopes unknown to this version."""
        scopes = frozenset(scope for scope in Scope if scope in stored["scopes"])
        connectors = None if stored["connectors"] is None else frozenset[str](stored["connectors"])
        return cls(UUID(stored["id"]), stored["name"], scopes, connectors, b"")


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user with the combined rights of the user's groups (Contract platform 4.3)."""

    id: int
    username: str
    is_admin: bool = False
    rights: frozenset[str] = field(default_factory=frozenset[str])
    groups: frozenset[str] = field(default_factory=frozenset[str])
    connectors_version: int = field(default=0, compare=False)
    """The version of the stored connectors when the rights were read; this process must be at least as current."""
    external_token: ExternalToken | None = field(default=None, compare=False)
    """Passed to engines that accept the caller's token instead of a login; None for a caller with an own token."""
    token_ids: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """The revocation ids of the call's token: its family's and its own; empty if there is none."""
    token_epoch: int | None = field(default=None, compare=False, repr=False)
    """The own token's epoch; None for a caller without an own token."""
    preferences: Preferences = field(default=Preferences(), compare=False)
    api_token: ApiTokenLimits | None = None
    """None for a caller without an API token."""

    def may(self, right: str) -> bool:
        """Whether the user has the right; administrators have all rights."""
        return self.is_admin or right in self.rights

    def may_use(self, connector_right: str) -> bool:
        """Whether a stored connector is granted, by itself or through `connector:*`, and the token permits it."""
        if not self.reaches(connector_right.removeprefix("connector:")):
            return False
        return self.is_admin or connector_right in self.rights or ANY_CONNECTOR in self.rights

    def is_in_any(self, groups: Collection[str]) -> bool:
        """Whether the user is in one of the groups; administrators count as members of all."""
        is_administrator = self.is_admin or (self.api_token is not None and self.api_token.is_of_administrator)
        return is_administrator or not self.groups.isdisjoint(groups)

    def reaches(self, connector: str) -> bool:
        """Whether the call's token permits the connector."""
        return self.reached is None or connector in self.reached

    @property
    def reached(self) -> Collection[str] | None:
        """The connectors that the call's token is limited to; None without a limit."""
        return None if self.api_token is None else self.api_token.connectors

    def has_scope(self, scope: Scope) -> bool:
        """Whether the call's token has the scope; tokens other than API tokens have all scopes."""
        return self.api_token is None or scope in self.api_token.scopes

    def narrowed(self, token: ApiTokenLimits) -> Self:
        """Return the user with current rights, narrowed to the token's scopes.

        Without the scope `admin`, an administrator has every right except administration. The scope has no effect once
        the user is no longer an administrator.
        """
        if self.is_admin and Scope.ADMIN in token.scopes:
            return replace(self, api_token=token)
        every_right = _NAMED - {IMPERSONATE} if self.is_admin else frozenset[str]()
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


STORES = ("filebrowser.s3_access", "filebrowser.abfs_access", "filebrowser.ofs_access", "filebrowser.file_access")
"""Rights that grant access to one file store each; hdfs needs no right."""

_NAMED = frozenset({ADMIN, ANY_CONNECTOR, DOWNLOAD, IMPERSONATE, IMPORTER, METADATA, *STORES})
# Only the canonical form, since grants are compared as text. Ids are bigints.
_ONE_CONNECTOR = re.compile(r"connector:[1-9][0-9]{0,18}", re.ASCII)


def read_right(text: str) -> str:
    """Validate the name of a right. Raises invalid_right."""
    if text in _NAMED or _ONE_CONNECTOR.fullmatch(text):
        return text
    raise invalid_right(f"There is no right {text[:100]}.")


MAX_LENGTH = 150

_ALLOWED = re.compile(r"[\w@.+-]+")
_ONLY_DOTS = re.compile(r"\.+")


@dataclass(frozen=True, slots=True)
class Username:
    """A legal name in its display form, and the key by which it is compared."""

    shown: str
    key: str


@dataclass(frozen=True, slots=True)
class UsernameRule:
    """The case rule of this installation."""

    ignore_case: bool = True
    force_lowercase: bool = True
    force_uppercase: bool = False

    @classmethod
    def of(cls, auth: "AuthSettings") -> Self:
        return cls(auth.ignore_username_case, auth.force_username_lowercase, auth.force_username_uppercase)

    def read(self, text: str) -> Username:
        """Normalize a name; surrounding blanks are ignored. Raises InvalidUsername."""
        # As in directories, compatibility forms make one name; otherwise full-width letters would allow more guesses.
        name = unicodedata.normalize("NFKC", text.strip())
        if self.force_lowercase:
            name = name.lower()
        elif self.force_uppercase:
            name = name.upper()
        if not (0 < len(name) <= MAX_LENGTH and _ALLOWED.fullmatch(name)) or _ONLY_DOTS.fullmatch(name):
            raise InvalidUsername
        return Username(name, name.casefold() if self.ignore_case else name)

    def read_exact(self, text: str) -> Username:
        """Like `read`, but requires `text` to be in normal form already.

        A name that differs from its normal form, say in width, case or blanks, may belong to a different person at
        another issuer, so it must not become the user with the normalized name. Raises InvalidUsername.
        """
        name = self.read(text)
        if name.shown != text:
            raise InvalidUsername
        return name


LDAP = "ldap"
"""The issuer of identities from the directory."""
ANY = "*"
"""Accepts any value if set as issuer or audience."""

IDENTITIES_MAX_LENGTH = 255
"""The maximum length of a subject, in characters."""


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    """An issuer's subject. Both names are case-sensitive; see `identity_of`."""

    issuer: str
    subject: str


def identity_of(issuer: str, subject: str) -> ExternalIdentity:
    """Return a subject's identity. Directories ignore case, so `Ana` and `ana` are the same there."""
    return ExternalIdentity(issuer, subject.casefold() if issuer == LDAP else subject)


def jwt_issuer(issuer: str) -> str:
    """Return the issuer name for tokens whose claim `iss` is `issuer`."""
    return f"jwt:{issuer}"


def is_import_path(name: str) -> bool:
    """Whether a name in the settings is a plug-in class; built-in names have neither dot nor colon."""
    return "." in name or ":" in name


def plug_in_issuer(path: str) -> str:
    """Return the issuer name of a `desktop.auth` plug-in, the same for both spellings of its path."""
    return path.replace(":", ".")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The facts about a call that are passed to login back ends."""

    client: str
    """The client's address: the peer's, or the one reported by a trusted proxy; `unknown` if unclear."""


class LoginBackend(Protocol):
    """Checks a name and a password. Back ends are tried in the order of `desktop.auth.backend`."""

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
    """The facts about a call that are passed to authenticators, without the body."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Lower-case names with unchanged values."""
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
        """The client's address: the peer's, or the one reported by a trusted proxy; `unknown` if unclear."""
        ...

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is in `desktop.trusted_proxies`; otherwise its headers prove nothing (T19)."""
        ...
