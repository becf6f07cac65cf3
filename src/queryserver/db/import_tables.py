"""Tables of imports."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import UUID

from queryserver.db.columns import metadata, moment

import_uploads = Table(
    "import_uploads",
    metadata,
    Column("digest", LargeBinary, primary_key=True, comment="SHA-256 of the secret part of the reference"),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False, comment="the last part of the reference"),
    Column("size_bytes", BigInteger, nullable=False),
    moment("uploaded_at", nullable=False, now=True),
    moment("expires_at", nullable=False),
    Index(None, "user_id"),
    Index(None, "expires_at"),
    comment="Files in the upload area of the importer; a file without a row is never read",
)

import_leftovers = Table(
    "import_leftovers",
    metadata,
    Column("statement_id", UUID(as_uuid=True), nullable=False, comment="the import; its record may be gone"),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("connector", Text, nullable=False),
    Column("database", Text, comment="null: where the session of the import is"),
    Column("table", Text, nullable=False),
    moment("made_at", nullable=False, now=True),
    Column("claimed_until", DateTime(timezone=True), comment="somebody drops it just now"),
    PrimaryKeyConstraint("statement_id", "table"),
    comment="Tables that an import has made and that must not stay: dropped when a crash leaves their row",
)
