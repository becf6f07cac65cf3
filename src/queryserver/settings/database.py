"""The service's own database: table `desktop.database`."""

from datetime import timedelta
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import field_validator

from queryserver.settings.section import NO_SECRET, Count, Flag, Port, Positive, Secret, Section, Text

SCHEMES = ("postgresql", "postgres")

DRIVERS_OWN = "prefer"
"""How the driver encrypts when nobody tells it."""

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


class DatabaseSettings(Section):
    """The service's own database is a PostgreSQL, given by `url` or by its parts."""

    url: Secret = NO_SECRET
    """`postgresql://user:password@host:port/name`."""
    host: Text = ""
    """Host name, or the directory of a socket."""
    port: Port = 5432
    """Port."""
    name: Text = ""
    """Name of the database."""
    user: Text = ""
    """Login."""
    password: Secret = NO_SECRET
    """Password of the login."""
    sslmode: SslMode = DRIVERS_OWN
    """How the connection is encrypted, in the words of libpq; a `sslmode` in `url` goes first."""
    embedded: Flag = False
    """Run a private PostgreSQL in `desktop.data_dir`."""
    auto_migrate: Flag = False
    """Bring the schema up to date at each start. Always so in the embedded mode."""
    pool_min: Count = 1
    """Connections that each process keeps open."""
    pool_max: Positive = 10
    """Most connections of one process."""
    connect_timeout_s: Positive = 5
    """Limit of making, or waiting for, a connection."""
    statement_timeout_s: Positive = 30
    """Limit of one statement of the service itself."""

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, url: Secret) -> Secret:
        text = url.get_secret_value()
        scheme = text.partition(":")[0].lower()
        if text and scheme not in SCHEMES:
            message = (
                f"must be a PostgreSQL address (postgresql://…), not {scheme[:20]}: "
                "the service needs a database that takes concurrent writes."
            )
            raise ValueError(message)
        return url

    @property
    def dsn(self) -> str | None:
        """The address for the driver; None when no database is configured. It holds the password: never log it."""
        url = self.url.get_secret_value() or self._from_parts()
        if not url or self.sslmode == DRIVERS_OWN or "sslmode" in parse_qs(urlsplit(url).query):
            return url
        return f"{url}{'&' if '?' in url else '?'}sslmode={self.sslmode}"

    @property
    def connect_timeout(self) -> timedelta:
        return timedelta(seconds=self.connect_timeout_s)

    @property
    def statement_timeout(self) -> timedelta:
        return timedelta(seconds=self.statement_timeout_s)

    def _from_parts(self) -> str | None:
        if not self.host and not self.name:
            return None
        password = self.password.get_secret_value()
        login = quote(self.user, safe="") + (f":{quote(password, safe='')}" if password else "")
        # A socket's directory cannot stand before the port, so the host is always a parameter.
        place = f"?host={quote(self.host or 'localhost', safe='')}&port={self.port}"
        return f"postgresql://{login}{'@' if login else ''}/{quote(self.name or self.user, safe='')}{place}"
