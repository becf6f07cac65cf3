"""Table of the limit on calls."""

from sqlalchemy import BigInteger, Column, Integer, Table, Text

from queryserver.db.columns import metadata

request_counts = Table(
    "request_counts",
    metadata,
    Column("caller", Text, primary_key=True, comment="a user's id, or an address on public paths"),
    Column("minute", BigInteger, nullable=False, comment="since 1970"),
    Column("requests", Integer, nullable=False),
    comment="Calls of this minute on all servers; unlogged, for a crash may lose it",
    prefixes=["UNLOGGED"],
)
