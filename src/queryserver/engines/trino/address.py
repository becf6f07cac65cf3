"""Which coordinator, which protocol, and as whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import urlsplit

from queryserver.domain.errors.statements import CredentialsRequired
from queryserver.domain.user import User
from queryserver.engines.retrying import RETRY_S
from queryserver.interfaces.engine import SessionOptions
from queryserver.network.addresses import AddressRules, HttpServer


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the two engines that speak the protocol: they differ in the names of headers and in what they offer."""

    dialect: str
    header_prefix: str
    capabilities: str = ""
    """What we understand of newer answers: without `PARAMETRIC_DATETIME` times are cut to milliseconds."""
    encodings: str = ""
    """Encodings of spooled results that we can read, best first; empty: the engine knows none."""

    def header(self, name: str) -> str:
        """The engine's header of that name: `X-Trino-User`."""
        return f"{self.header_prefix}{name}"


TRINO = Variant("trino", "X-Trino-", "PATH,PARAMETRIC_DATETIME,SESSION_AUTHORIZATION", "json+zstd,json")
PRESTO = Variant("presto", "X-Presto-")


class Authentication(StrEnum):
    """How the coordinator knows who logs in."""

    NONE = "NONE"
    BASIC = "BASIC"
    JWT = "JWT"
    """By the caller's own token."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """For the next bytes of an answer; the coordinator itself answers a look after at most 1 s."""
    retry_s: float = RETRY_S
    """How long a request is tried again in vain before the statement is given up."""
    stop_s: float = 5.0
    """For each of the calls that end something."""
    open_s: float = 20.0
    """For the opening of a session."""


@dataclass(frozen=True, slots=True)
class Login:
    """As whom requests are sent. `user` is whose rights count; the secrets are never shown."""

    user: str
    username: str = ""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TrinoAddress(HttpServer):
    """A coordinator and what its connector says about sessions (Contract platform 5.11: trino)."""

    catalog: str = ""
    schema: str = ""
    username: str | None = ""
    """Empty: the caller's name; None: callers give theirs through create_session."""
    password: str | None = field(default=None, repr=False)
    authentication: Authentication = Authentication.NONE
    has_impersonation: bool = False
    """Log in as `username`, run statements as the caller."""
    ssl_validate: bool = True
    ssl_ca: str = ""
    """PEM text of the authorities to trust instead of the system's."""
    session_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    client_tags: str = ""
    source: str = "queryserver"
    time_zone: str = ""
    patience: Patience = Patience()
    cell_max_bytes: int = 16 * 1024 * 1024
    """Largest value of a result; answers with rows that are much larger are not read to their end."""
    rules: AddressRules = field(default_factory=AddressRules)

    @property
    def path(self) -> str:
        """What stands before `/v1`, where a proxy has the coordinator below a path."""
        return urlsplit(self.url).path.rstrip("/")

    def login(self, user: User, options: SessionOptions) -> Login:
        """As whom a session of `user` runs. Raises CredentialsRequired."""
        if self.authentication is Authentication.JWT:
            if not options.external_token:
                raise CredentialsRequired("This data source wants your own token.")
            return Login(user.username, token=options.external_token)
        given = options.credentials
        if given is not None and (self.username is None or self.authentication is Authentication.BASIC):
            password = given.password if self.authentication is Authentication.BASIC else None
            return Login(given.username, given.username, password)
        if given is not None and given.username != user.username:
            # Nobody would check the password, and the name alone decides what may be seen.
            raise CredentialsRequired("This data source takes no login of your own.")
        if self.username is None:
            raise CredentialsRequired("This data source wants your own user name and password.")
        name = self.username or user.username
        runs_as = user.username if self.has_impersonation else name
        if self.authentication is Authentication.BASIC:
            return Login(runs_as, name, self.password or "")
        return Login(runs_as)
