"""How the service database is reached. Light to import: commands start with it."""

from queryserver.db.database import PoolLimits
from queryserver.domain.errors.base import ConfigurationError
from queryserver.settings import Settings


def required_dsn(settings: Settings) -> str:
    """The address of the service database. Raises ConfigurationError when there is none."""
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(["desktop.database.url: a PostgreSQL database is needed, or `serve --embedded`."])
    return dsn


def pool_limits(settings: Settings) -> PoolLimits:
    """How many connections to the service database one process holds."""
    database = settings.desktop.database
    return PoolLimits(
        min_size=database.pool_min,
        max_size=database.pool_max,
        connect_timeout=database.connect_timeout,
        statement_timeout=database.statement_timeout,
    )
