"""Tables of stored connectors."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from queryserver.db.columns import metadata, moment

connectors = Table(
    "connectors",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("nice_name", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("interface", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("settings", JSONB, nullable=False, server_default="[]", comment="name and value in order; secrets masked"),
    Column("sealed_secrets", LargeBinary, comment="encrypted: the whole values of settings that hold secrets"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("example_digest", Text, comment="what examples/install put here; null: not from there, or edited since"),
    moment("created_at", nullable=False, now=True),
    moment("changed_at", nullable=False, now=True),
    moment("deleted_at"),
    Index("uq_connectors_name", text("lower(nice_name)"), unique=True, postgresql_where=text("deleted_at is null")),
    comment="Connector instances; a deleted one leaves its names as a tombstone, and its id is never used again",
)

connector_state = Table(
    "connector_state",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column("version", BigInteger, nullable=False, server_default="0", comment="up by one with each change"),
    CheckConstraint("single", name="one_row"),
    comment="One row: the number of the present state of all connectors; changes take turns by locking it",
)
