"""PostgreSQL through asyncpg: server-side portals, rows to Arrow by column."""

from queryserver.engines.postgresql.engine import PostgresqlEngine as PostgresqlEngine
from queryserver.engines.postgresql.pool import PostgresqlAddress as PostgresqlAddress
