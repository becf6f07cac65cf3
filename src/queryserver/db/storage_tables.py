"""Tables of uploads and of long operations on files."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from queryserver.db.columns import flag, metadata, moment

unfinished_writes = Table(
    "unfinished_writes",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("scheme", Text, nullable=False),
    Column("directory", Text, nullable=False, comment="relative to the root of the store"),
    Column("name", Text, nullable=False, server_default="", comment="of the entry that is written; empty: not known"),
    Column("username", Text, nullable=False, comment="as whom the store is used"),
    flag("is_admin", default=False),
    moment("touched_at", nullable=False, now=True),
    Index(None, "touched_at"),
    comment="Directories that are written to: when a crash leaves its row, its temporary files are swept there",
)

part_uploads = Table(
    "part_uploads",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="SET NULL"), comment="null: the user is gone"),
    Column("client_uuid", UUID(as_uuid=True), nullable=False, comment="qquuid on the wire"),
    Column("username", Text, nullable=False, comment="as whom the store is used"),
    flag("is_admin", default=False),
    Column("scheme", Text, nullable=False),
    Column("path", Text, nullable=False, comment="of the file, relative to the root of the store"),
    Column("size_bytes", BigInteger, nullable=False),
    Column("part_bytes", BigInteger, nullable=False, comment="of every part but the last"),
    Column("parts", Integer, nullable=False),
    flag("overwrite", default=False),
    Column("state", Text, nullable=False, comment="open or done"),
    Column("staging", Text, comment="the place of the parts, in the store's own words; null: not prepared yet"),
    Column("claimed_by", UUID(as_uuid=True), comment="who prepares, joins or removes it at the moment"),
    moment("claimed_until"),
    Column("result", JSONB, comment="the entry that the parts became"),
    moment("created_at", nullable=False, now=True),
    moment("expires_at", nullable=False),
    UniqueConstraint("user_id", "client_uuid"),
    Index(None, "expires_at"),
)

part_upload_parts = Table(
    "part_upload_parts",
    metadata,
    Column("upload_id", UUID(as_uuid=True), ForeignKey("part_uploads.id", ondelete="CASCADE"), nullable=False),
    Column("index", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("sha256", LargeBinary, comment="null: still on its way"),
    Column("receipt", Text, comment="what the store wants to hear again when the parts are joined"),
    Column("claimed_by", UUID(as_uuid=True), comment="who writes it at the moment"),
    moment("claimed_until"),
    PrimaryKeyConstraint("upload_id", "index"),
)

storage_operations = Table(
    "storage_operations",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("state", Text, nullable=False, comment="running, done, failed"),
    Column("done", BigInteger, nullable=False, server_default="0"),
    Column("total", BigInteger, comment="null: not known yet"),
    Column("result", JSONB, comment="the final body"),
    moment("lease_until", nullable=False),
    moment("started_at", nullable=False, now=True),
    moment("ended_at"),
    Index(None, "ended_at"),
    comment="Work on files that goes on after the answer",
)

storage_transfers = Table(
    "storage_transfers",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="SET NULL"), comment="null: the user is gone"),
    Column("digest", LargeBinary, nullable=False, comment="of user, kind, source and target"),
    Column("username", Text, nullable=False, comment="as whom the stores are used"),
    flag("is_admin", default=False),
    Column("kind", Text, nullable=False, comment="rename, move, copy"),
    Column("source_scheme", Text, nullable=False),
    Column("source", Text, nullable=False, comment="relative to the root of the store"),
    Column("target_scheme", Text, nullable=False),
    Column("target", Text, nullable=False, comment="relative to the root of the store"),
    flag("overwrite", default=False),
    Column("operation_id", UUID(as_uuid=True), comment="whose outcome it is, if its client asks later"),
    Column("state", Text, nullable=False, comment="copying, verified, deleting, done, rolled_back, failed"),
    Column("owner", Text, comment="the process that works on it; null: the user must call"),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    moment("lease_until"),
    moment("started_at", nullable=False, now=True),
    moment("ended_at"),
    # Two paths are longer than an index takes.
    Index("ix_storage_transfers_unended", "digest", unique=True, postgresql_where=text("ended_at is null")),
    Index(None, "ended_at"),
    Index(None, "operation_id"),
    comment="Moves and copies of several steps: what a crash leaves is finished or taken back by another process",
)

storage_transfer_keys = Table(
    "storage_transfer_keys",
    metadata,
    Column("transfer_id", UUID(as_uuid=True), ForeignKey("storage_transfers.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False, comment="parents before what they hold"),
    Column("path", Text, nullable=False, comment="relative to the source"),
    Column("kind", Text, nullable=False, comment="dir, file, link"),
    Column("size_bytes", BigInteger, nullable=False),
    moment("modified_at"),
    Column("tag", Text, nullable=False),
    Column("file_id", Text, nullable=False),
    Column("permissions", Integer, nullable=False),
    Column("state", Text, nullable=False, comment="listed, started, copied, deleted, skipped"),
    PrimaryKeyConstraint("transfer_id", "number"),
    comment="Every entry of the source of a transfer, as it was when it was listed",
)
