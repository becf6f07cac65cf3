"""PostgreSQL through asyncpg: server-side portals, rows to Arrow by column."""

from queryserver.engines.postgresql.address import KeepAlive as KeepAlive
from queryserver.engines.postgresql.address import PostgresqlAddress as PostgresqlAddress
from queryserver.engines.postgresql.engine import PostgresqlEngine as PostgresqlEngine
