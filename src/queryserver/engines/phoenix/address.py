"""Which Query Server, and as whom."""

from dataclasses import dataclass, field
from enum import StrEnum

from queryserver.domain.errors.statements import CredentialsRequired
from queryserver.interfaces.engine import SessionOptions
from queryserver.network.addresses import AddressRules, HttpServer


class Authentication(StrEnum):
    """How the Query Server knows who logs in."""

    NONE = "NONE"
    BASIC = "BASIC"
    SPNEGO = "SPNEGO"
    """By the Kerberos ticket of this process."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """For an answer that needs no work of the database."""
    stop_s: float = 5.0
    """For each of the calls that end something."""
    beat_s: float = 20.0
    """Between two signs of life; the server forgets connections that are silent for ten minutes."""
    silence_s: float = 60.0
    """A server that gives no sign of life for so long is taken for dead, whatever it was asked."""


@dataclass(frozen=True, slots=True)
class Login:
    """As whom requests are sent; the password is never shown."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PhoenixAddress(HttpServer):
    """A Query Server and what its connector says about logins (Contract platform 5.11: phoenix)."""

    username: str | None = ""
    """None: callers give theirs through create_session."""
    password: str = field(default="", repr=False)
    authentication: Authentication = Authentication.NONE
    ssl_validate: bool = True
    ssl_ca: str = ""
    """PEM text of the authorities to trust instead of the system's."""
    patience: Patience = field(default_factory=Patience)
    cell_max_bytes: int = 16 * 1024 * 1024
    """Largest value of a result; frames that hold larger ones are not read to their end."""
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, options: SessionOptions) -> Login | None:
        """The login of a session; None where the server wants none. Raises CredentialsRequired."""
        if options.credentials is not None:
            return Login(options.credentials.username, options.credentials.password)
        if self.username is None:
            raise CredentialsRequired("This data source wants your own user name and password.")
        if self.authentication is not Authentication.BASIC:
            return None
        return Login(self.username, self.password)
