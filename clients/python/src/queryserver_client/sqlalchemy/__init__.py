"""SQLAlchemy 2 dialects: `create_engine("queryserver://user:password@host/connector")`.

The generated SQL is in the dialect of the connector's engine. `queryserver://` determines the engine with a request to
the server. `queryserver+duckdb://` (or postgresql, mysql, sqlite, hive, impala, sparksql, trino, phoenix, other) needs
no such request.
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
