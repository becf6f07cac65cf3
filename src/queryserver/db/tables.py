"""Tables of the service database. Alembic compares them with the migrations in a test."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _moment(name: str, *, nullable: bool = True, now: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=func.now() if now else None)


def _flag(name: str, *, default: bool) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=text("true" if default else "false"))


facts = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    comment="Facts about this deployment, such as the fingerprint of its signing key",
)

users = Table(
    "users",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("username", Text, nullable=False, comment="as shown"),
    Column("username_key", Text, nullable=False, unique=True, comment="folded by the case rule; compared"),
    Column("first_name", Text, nullable=False, server_default=""),
    Column("last_name", Text, nullable=False, server_default=""),
    Column("email", Text, nullable=False, server_default=""),
    Column("password_hash", Text, comment="argon2id; null: no local login"),
    _flag("is_active", default=True),
    _flag("is_admin", default=False),
    Column("token_epoch", Integer, nullable=False, server_default="0", comment="raised to end all tokens"),
    _moment("last_login"),
    _moment("created_at", nullable=False, now=True),
)

groups = Table(
    "groups",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)

group_members = Table(
    "group_members",
    metadata,
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("group_id", BigInteger, ForeignKey("groups.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("user_id", "group_id"),
    Index(None, "group_id"),
)

group_rights = Table(
    "group_rights",
    metadata,
    Column("group_id", BigInteger, ForeignKey("groups.id", ondelete="CASCADE"), nullable=False),
    Column("right", Text, nullable=False),
    PrimaryKeyConstraint("group_id", "right"),
)

revoked_tokens = Table(
    "revoked_tokens",
    metadata,
    Column("token_id", Text, primary_key=True, comment="a family, or the jti of one token"),
    _moment("expires_at", nullable=False),
    Index(None, "expires_at"),
)

rotated_tokens = Table(
    "rotated_tokens",
    metadata,
    Column("jti", Text, primary_key=True, comment="a refresh token that was exchanged for its successor"),
    _moment("rotated_at", nullable=False, now=True),
    _moment("expires_at", nullable=False),
    Index(None, "expires_at"),
)

login_failures = Table(
    "login_failures",
    metadata,
    Column("key", Text, primary_key=True, comment="digest of a name, an address, or both"),
    _moment("window_started_at", nullable=False),
    Column("failures", Integer, nullable=False),
    Index(None, "window_started_at"),
)

scripts = Table(
    "scripts",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("body", Text, nullable=False),
    comment="Scripts of more than one statement, shared by the operations that run them one by one",
)

session_ids = Sequence("session_ids", metadata=metadata)

sessions = Table(
    "sessions",
    metadata,
    Column("id", BigInteger, primary_key=True, comment="from session_ids"),
    Column("guid", Text, nullable=False),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("connector", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    _flag("named", default=True),
    Column("properties", JSONB, nullable=False, server_default="[]", comment="as given, without secrets"),
    Column("settings", JSONB, nullable=False, server_default="{}"),
    Column("sealed_credentials", LargeBinary, comment="encrypted; for the session's life"),
    Column("owner", Text, nullable=False, comment="the instance that holds the engine session"),
    _moment("lease_until", nullable=False),
    _moment("created_at", nullable=False, now=True),
    _moment("last_used_at", nullable=False, now=True),
    Column("idle_s", Integer, nullable=False),
    _moment("closed_at"),
    Index("ix_sessions_open", "user_id", "connector", postgresql_where=text("closed_at is null")),
)

shared_sessions = Table(
    "shared_sessions",
    metadata,
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("connector", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, comment="of database and settings"),
    Column("session_id", BigInteger, nullable=False),
    Column("guid", Text, nullable=False),
    PrimaryKeyConstraint("user_id", "connector", "digest"),
    comment="The session that statements of a user share, where a connector has shared_session",
)

statements = Table(
    "statements",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True, comment="history_uuid on the wire"),
    Column("history_id", BigInteger, Identity(), nullable=False, unique=True),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("connector", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("statement", Text, nullable=False),
    Column("script_id", BigInteger, ForeignKey("scripts.id"), comment="null: the script is this one statement"),
    Column("statement_index", Integer, nullable=False),
    Column("statements_count", Integer, nullable=False),
    Column("position", ARRAY(Integer), nullable=False, comment="start row, start column, end row, end column"),
    Column("statement_hash", Text, nullable=False),
    Column("guid", Text, nullable=False, unique=True),
    Column("secret", Text, nullable=False),
    Column("session_id", BigInteger, nullable=False),
    Column("session_guid", Text, nullable=False),
    _flag("in_named_session", default=False),
    _flag("keeps_session", default=False),
    Column("database", Text),
    Column("settings", JSONB, nullable=False, server_default="{}"),
    Column("row_limit", BigInteger, nullable=False),
    Column("timeout_s", Integer, nullable=False),
    _flag("in_history", default=True),
    Column("parent_uuid", Text, nullable=False, server_default=""),
    _moment("recorded_at", nullable=False, now=True),
    _moment("deadline_at", nullable=False),
    _moment("sent_at"),
    _moment("ended_at"),
    _moment("expires_at"),
    _moment("last_used_at", nullable=False, now=True),
    Column("engine_handle", Text, comment="token by which another instance re-attaches"),
    Column("has_result_set", Boolean, nullable=False),
    Column("modified_row_count", BigInteger),
    Column("columns", JSONB),
    Column("rows", BigInteger, nullable=False, server_default="0"),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("truncated_reason", Text),
    Column("error_code", Text),
    Column("message", Text, nullable=False, server_default=""),
    Column("progress", SmallInteger, nullable=False, server_default="0"),
    Column("jobs", JSONB, nullable=False, server_default="[]"),
    Column("owner", Text),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    _moment("lease_until"),
    _moment("cancel_requested_at"),
    Column("canceled_by", Text),
    Column("cursor_row", BigInteger, nullable=False, server_default="0"),
    Column("inline_result", LargeBinary, comment="the whole result as an Arrow stream, when it is small"),
    Index("ix_statements_history", "user_id", text("recorded_at desc"), text("history_id desc")),
    Index("ix_statements_active", "user_id", postgresql_where=text("state in ('waiting', 'running')")),
    Index("ix_statements_claimable", "lease_until", postgresql_where=text("state in ('waiting', 'running')")),
    Index("ix_statements_session", "session_id", postgresql_where=text("state in ('waiting', 'running')")),
    Index("ix_statements_expiry", "expires_at", postgresql_where=text("state = 'available'")),
    Index("ix_statements_spool", "user_id", postgresql_where=text("state = 'available' and size_bytes > 32768")),
    Index("ix_statements_recorded_at", "recorded_at"),
)

statement_logs = Table(
    "statement_logs",
    metadata,
    Column("statement_id", UUID(as_uuid=True), ForeignKey("statements.id", ondelete="CASCADE"), nullable=False),
    Column("start_line", Integer, nullable=False, comment="number of the first line of this piece"),
    Column("lines", ARRAY(Text), nullable=False),
    PrimaryKeyConstraint("statement_id", "start_line"),
)

result_segments = Table(
    "result_segments",
    metadata,
    Column("statement_id", UUID(as_uuid=True), ForeignKey("statements.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("start_row", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("statement_id", "number"),
)

doomed_results = Table(
    "doomed_results",
    metadata,
    Column("statement_id", UUID(as_uuid=True), primary_key=True),
    _moment("since", nullable=False, now=True),
    comment="Results whose bytes are still to be deleted: written with the change of state, emptied by the sweep",
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("statement_id", UUID(as_uuid=True), nullable=False),
    _moment("created_at", nullable=False, now=True),
    PrimaryKeyConstraint("user_id", "key"),
    Index(None, "created_at"),
)

engine_owners = Table(
    "engine_owners",
    metadata,
    Column("connector", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    _moment("lease_until", nullable=False),
    comment="Which process holds an engine whose data belong to one process at a time",
)

metadata_answers = Table(
    "metadata_answers",
    metadata,
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("connector", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, comment="of what was asked"),
    Column("value", LargeBinary, nullable=False, comment="compressed"),
    Column("size_bytes", Integer, nullable=False),
    _moment("looked_at", nullable=False),
    PrimaryKeyConstraint("user_id", "connector", "digest"),
    Index(None, "looked_at"),
    comment="What catalogues of data sources answered lately; unlogged, for a crash may lose it",
    prefixes=["UNLOGGED"],
)

metadata_changes = Table(
    "metadata_changes",
    metadata,
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("connector", Text, nullable=False),
    _moment("changed_at", nullable=False),
    PrimaryKeyConstraint("user_id", "connector"),
    comment="When a user last changed objects of a data source: answers from before do not count",
    prefixes=["UNLOGGED"],
)

forwarded_looks = Table(
    "forwarded_looks",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("target", Text, nullable=False, comment="the process that is asked"),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("answer", LargeBinary),
    _moment("asked_at", nullable=False, now=True),
    _moment("taken_at"),
    comment="Looks at data that another process holds, while somebody waits for them",
    prefixes=["UNLOGGED"],
)

unfinished_writes = Table(
    "unfinished_writes",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("scheme", Text, nullable=False),
    Column("directory", Text, nullable=False, comment="relative to the root of the store"),
    Column("username", Text, nullable=False, comment="as whom the store is used"),
    _flag("is_admin", default=False),
    _moment("touched_at", nullable=False, now=True),
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
    _flag("is_admin", default=False),
    Column("scheme", Text, nullable=False),
    Column("path", Text, nullable=False, comment="of the file, relative to the root of the store"),
    Column("size_bytes", BigInteger, nullable=False),
    Column("part_bytes", BigInteger, nullable=False, comment="of every part but the last"),
    Column("parts", Integer, nullable=False),
    _flag("overwrite", default=False),
    Column("state", Text, nullable=False, comment="open, done, discarded"),
    Column("staging", Text, comment="the place of the parts, in the store's own words; null: not prepared yet"),
    Column("claimed_by", UUID(as_uuid=True), comment="who prepares, joins or discards at the moment"),
    _moment("claimed_until"),
    Column("result", JSONB, comment="the entry that the parts became"),
    _moment("created_at", nullable=False, now=True),
    _moment("expires_at", nullable=False),
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
    _moment("claimed_until"),
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
    _moment("lease_until", nullable=False),
    _moment("started_at", nullable=False, now=True),
    _moment("ended_at"),
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
    _flag("is_admin", default=False),
    Column("kind", Text, nullable=False, comment="rename, move, copy"),
    Column("source_scheme", Text, nullable=False),
    Column("source", Text, nullable=False, comment="relative to the root of the store"),
    Column("target_scheme", Text, nullable=False),
    Column("target", Text, nullable=False, comment="relative to the root of the store"),
    _flag("overwrite", default=False),
    Column("operation_id", UUID(as_uuid=True), comment="whose outcome it is, if its client asks later"),
    Column("state", Text, nullable=False, comment="copying, verified, deleting, done, rolled_back, failed"),
    Column("owner", Text, comment="the process that works on it; null: the user must call"),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    _moment("lease_until"),
    _moment("started_at", nullable=False, now=True),
    _moment("ended_at"),
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
    _moment("modified_at"),
    Column("tag", Text, nullable=False),
    Column("file_id", Text, nullable=False),
    Column("permissions", Integer, nullable=False),
    Column("state", Text, nullable=False, comment="listed, started, copied, deleted, skipped"),
    PrimaryKeyConstraint("transfer_id", "number"),
    comment="Every entry of the source of a transfer, as it was when it was listed",
)
