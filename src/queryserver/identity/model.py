"""The caller, rights, names of users, who a user is at another issuer, and calls as back ends and plug-ins see them."""

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
    """The token of another issuer that a call came with (Contract platform 3.9). Never logged."""

    text: str = field(repr=False)
    expires_at: int
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SealedToken:
    """An external token as the database keeps it, with the statement that needs it."""

    content: bytes = field(repr=False)
    expires_at: int
    """Seconds since 1970; from then on it is not used."""


BigNumbers: TypeAlias = Literal["number", "text"]
"""The form of numbers that may have more digits than a double keeps."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """Preferences of a user, for calls that do not state them."""

    big_numbers: BigNumbers = "number"


def preferences_of(stored: Mapping[str, Any]) -> Preferences:
    """From their stored form; values that this version does not know count as absent."""
    big_numbers: object = stored.get("big_numbers")
    return Preferences(big_numbers="text") if big_numbers == "text" else Preferences()


class Scope(StrEnum):
    """What an API token is for. A call needs the one in its row of operations.yaml; none contains another one."""

    QUERY = "query"
    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    IMPORT = "import"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiTokenLimits:
    """The API token that a call came with, which narrows the rights of its user."""

    id: UUID
    name: str
    scopes: frozenset[Scope]
    connectors: frozenset[str] | None
    """The keys of the connectors that it may use; None: those of the user."""
    digest: bytes = field(repr=False, compare=False)
    """By which it is found again."""
    is_of_administrator: bool = False

    @property
    def stored(self) -> Mapping[str, Any]:
        """As it is kept with a statement."""
        connectors = None if self.connectors is None else sorted(self.connectors)
        return {"id": str(self.id), "name": self.name, "scopes": sorted(self.scopes), "connectors": connectors}

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        """What `stored` gave. Scopes that this version does not know are not among them."""
        scopes = frozenset(scope for scope in Scope if scope in stored["scopes"])
        connectors = None if stored["connectors"] is None else frozenset[str](stored["connectors"])
        return cls(UUID(stored["id"]), stored["name"], scopes, connectors, b"")


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user with the union of the rights of the groups (Contract platform 4.3)."""

    id: int
    username: str
    is_admin: bool = False
    rights: frozenset[str] = field(default_factory=frozenset[str])
    groups: frozenset[str] = field(default_factory=frozenset[str])
    connectors_version: int = field(default=0, compare=False)
    """The state of the stored connectors when the rights were read: this process must have read it, too."""
    external_token: ExternalToken | None = field(default=None, compare=False)
    """For engines that take the caller's own token instead of a login; None with an own token."""
    token_ids: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """The ids by which the token of the call can be ended: of its family and its own; empty where there is none."""
    token_epoch: int | None = field(default=None, compare=False, repr=False)
    """The epoch of an own token; None for a caller without one."""
    preferences: Preferences = field(default=Preferences(), compare=False)
    api_token: ApiTokenLimits | None = None
    """None for a caller with another token, or without one."""

    def may(self, right: str) -> bool:
        """Administrators may everything."""
        return self.is_admin or right in self.rights

    def may_use(self, connector_right: str) -> bool:
        """Whether a stored connector is granted, by itself or with all others, and within the limits of the token."""
        if not self.reaches(connector_right.removeprefix("connector:")):
            return False
        return self.is_admin or connector_right in self.rights or ANY_CONNECTOR in self.rights

    def is_in_any(self, groups: Collection[str]) -> bool:
        """Whether the user is in one of the groups; administrators count as members of all."""
        is_administrator = self.is_admin or (self.api_token is not None and self.api_token.is_of_administrator)
        return is_administrator or not self.groups.isdisjoint(groups)

    def reaches(self, connector: str) -> bool:
        """Whether the token of the call is not limited to other connectors."""
        return self.reached is None or connector in self.reached

    @property
    def reached(self) -> Collection[str] | None:
        """The connectors that the token of the call is limited to; None: it is not limited."""
        return None if self.api_token is None else self.api_token.connectors

    def has_scope(self, scope: Scope) -> bool:
        """Whether the token of the call has the scope; other tokens than API tokens have all."""
        return self.api_token is None or scope in self.api_token.scopes

    def narrowed(self, token: ApiTokenLimits) -> Self:
        """The user as a call with this token sees it: the rights of this moment, within the scopes.

        Without the scope `admin` an administrator is a user with every right but those of administration. The scope is
        that of an administrator: it goes when the user is none any more.
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
    """The caller by a login back end or an authenticator."""

    username: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    groups: Sequence[str] | None = None
    """All groups of the user from now on, by name; None: they stay as they are."""


STORES = ("filebrowser.s3_access", "filebrowser.abfs_access", "filebrowser.ofs_access", "filebrowser.file_access")
"""Each opens one store; hdfs needs none."""

_NAMED = frozenset({ADMIN, ANY_CONNECTOR, DOWNLOAD, IMPERSONATE, IMPORTER, METADATA, *STORES})
# Written in one way only, or a grant would not be found again. Ids are bigints.
_ONE_CONNECTOR = re.compile(r"connector:[1-9][0-9]{0,18}", re.ASCII)


def read_right(text: str) -> str:
    """The right that `text` names. Raises invalid_right."""
    if text in _NAMED or _ONE_CONNECTOR.fullmatch(text):
        return text
    raise invalid_right(f"There is no right {text[:100]}.")


MAX_LENGTH = 150

_ALLOWED = re.compile(r"[\w@.+-]+")
_ONLY_DOTS = re.compile(r"\.+")


@dataclass(frozen=True, slots=True)
class Username:
    """A legal name: as it is shown, and the key by which it is compared."""

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
        """The name that `text` means; blanks around it do not count. Raises InvalidUsername."""
        # Compatible forms are one name, as in directories: letters of full width would be further names to guess.
        name = unicodedata.normalize("NFKC", text.strip())
        if self.force_lowercase:
            name = name.lower()
        elif self.force_uppercase:
            name = name.upper()
        if not (0 < len(name) <= MAX_LENGTH and _ALLOWED.fullmatch(name)) or _ONLY_DOTS.fullmatch(name):
            raise InvalidUsername
        return Username(name, name.casefold() if self.ignore_case else name)

    def read_exact(self, text: str) -> Username:
        """The name that is written exactly as this installation keeps it.

        A name that another issuer writes in another way, such as in full width, in capitals or with blanks, may be
        another person there: it must not become the user with the changed name. Raises InvalidUsername.
        """
        name = self.read(text)
        if name.shown != text:
            raise InvalidUsername
        return name


LDAP = "ldap"
"""The issuer of persons of the directory."""
ANY = "*"
"""The issuer or the audience of the settings when tokens of every one are accepted."""

IDENTITIES_MAX_LENGTH = 255
"""Of a subject, in characters."""


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    """A subject of an issuer. Both are compared exactly; see `identity_of`."""

    issuer: str
    subject: str


def identity_of(issuer: str, subject: str) -> ExternalIdentity:
    """The identity of a subject. A directory compares names without case: `Ana` is `ana` there."""
    return ExternalIdentity(issuer, subject.casefold() if issuer == LDAP else subject)


def jwt_issuer(issuer: str) -> str:
    """The issuer of tokens whose claim `iss` is `issuer`."""
    return f"jwt:{issuer}"


def is_import_path(name: str) -> bool:
    """Whether a name of the settings is the class of a plug-in; built-in names have neither dot nor colon."""
    return "." in name or ":" in name


def plug_in_issuer(path: str) -> str:
    """The issuer name of a plug-in of `desktop.auth`, however its path is written."""
    return path.replace(":", ".")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The facts about a call that login back ends get."""

    client: str
    """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""


class LoginBackend(Protocol):
    """Checks a name and a password. Back ends are tried in the order of `desktop.auth.backend`."""

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user; None: the next back end is tried.

        Raises AuthenticationFailed: no other back end is tried. Any other error counts as "out of reach".
        """
        ...


class CallHeaders(Protocol):
    """Headers of a call by name, whatever the case."""

    def get(self, name: str, /) -> str | None: ...

    def getlist(self, name: str, /) -> list[str]: ...


class AuthRequest(Protocol):
    """The facts about a call that authenticators get; the body is not one of them."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Names in lower case, and values, as they came."""
        ...

    @property
    def method(self) -> str: ...

    @property
    def url(self) -> str:
        """The whole address, query included."""
        ...

    @property
    def headers(self) -> CallHeaders: ...

    @property
    def client(self) -> str:
        """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""
        ...

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is in `desktop.trusted_proxies`: else its headers are claims of the caller (T19)."""
        ...
