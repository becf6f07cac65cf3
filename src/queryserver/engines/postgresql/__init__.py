"""PostgreSQL through asyncpg: server-side portals, rows to Arrow by column."""

from queryserver.engines.postgresql.address import KeepAlive as KeepAlive
from queryserver.engines.postgresql.address import PostgresqlAddress as PostgresqlAddress
from queryserver.engines.postgresql.engine import PostgresqlEngine as PostgresqlEngine
from queryserver.engines.postgresql.own_database import OwnDatabase as OwnDatabase
from queryserver.engines.postgresql.user_logins import UserLogins as UserLogins
