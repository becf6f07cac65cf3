"""SQLAlchemy 2 via a server: `create_engine("queryserver://user:password@host/connector")`.

The SQL is that of the connector's engine. `queryserver://` calls the server once to determine the engine;
`queryserver+duckdb://` (postgresql, mysql, sqlite, hive, impala, sparksql, trino, phoenix, other) does not.
"""

from queryserver_client.sqlalchemy.choice import AnyDialect
from queryserver_client.sqlalchemy.duckdb import DuckDBDialect
from queryserver_client.sqlalchemy.hive import HiveDialect, ImpalaDialect, SparkDialect
from queryserver_client.sqlalchemy.mysql import MySQLDialect
from queryserver_client.sqlalchemy.other import OtherDialect, TrinoDialect
from queryserver_client.sqlalchemy.phoenix import PhoenixDialect
from queryserver_client.sqlalchemy.postgresql import PostgresqlDialect
from queryserver_client.sqlalchemy.sqlite import SqliteDialect

__all__ = [
    "AnyDialect",
    "DuckDBDialect",
    "HiveDialect",
    "ImpalaDialect",
    "MySQLDialect",
    "OtherDialect",
    "PhoenixDialect",
    "PostgresqlDialect",
    "SparkDialect",
    "SqliteDialect",
    "TrinoDialect",
]
