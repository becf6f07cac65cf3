"""Tables of the service database. Alembic compares them with the migrations in a test."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Computed,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from queryserver.db import (
    connector_tables,
    identity_tables,
    import_tables,
    request_tables,
    search_tables,
    storage_tables,
)
from queryserver.db.columns import flag, metadata, moment
from queryserver.db.search_tables import SEARCH_NAME, SEARCH_WORDS

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
    flag("is_active", default=True),
    flag("is_admin", default=False),
    Column("token_epoch", Integer, nullable=False, server_default="0", comment="raised to end all tokens"),
    moment("last_login"),
    moment("created_at", nullable=False, now=True),
    Column(
        "preferences",
        JSONB,
        nullable=False,
        server_default="{}",
        comment="what the user wants where a call does not say it; a name that is missing has its default",
    ),
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
    moment("expires_at", nullable=False),
    Index(None, "expires_at"),
)

rotated_tokens = Table(
    "rotated_tokens",
    metadata,
    Column("jti", Text, primary_key=True, comment="a refresh token that was exchanged for its successor"),
    moment("rotated_at", nullable=False, now=True),
    moment("expires_at", nullable=False),
    Index(None, "expires_at"),
)

login_failures = Table(
    "login_failures",
    metadata,
    Column("key", Text, primary_key=True, comment="digest of a name, an address, or both"),
    moment("window_started_at", nullable=False),
    Column("failures", Integer, nullable=False),
    Index(None, "window_started_at"),
)

scripts = Table(
    "scripts",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("body", Text, nullable=False),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE")),
    Column("digest", LargeBinary, comment="SHA-256; null: of a former version"),
    Column("text_bytes", BigInteger, nullable=False, server_default="0", comment="as in statements"),
    Column(
        "text_is_cut",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="only the beginning of the body is left",
    ),
    Index("uq_scripts_digest", "user_id", "digest", unique=True, postgresql_where=text("not text_is_cut")),
    Index("ix_scripts_texts", "user_id", "text_bytes", postgresql_where=text("text_bytes > 0")),
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
    flag("named", default=True),
    Column("properties", JSONB, nullable=False, server_default="[]", comment="as given, without secrets"),
    Column("settings", JSONB, nullable=False, server_default="{}"),
    Column("sealed_credentials", LargeBinary, comment="encrypted; for the session's life"),
    Column("owner", Text, nullable=False, comment="the instance that holds the engine session"),
    moment("lease_until", nullable=False),
    moment("created_at", nullable=False, now=True),
    moment("last_used_at", nullable=False, now=True),
    Column("idle_s", Integer, nullable=False),
    moment("closed_at"),
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
    flag("in_named_session", default=False),
    flag("keeps_session", default=False),
    Column("database", Text),
    Column("settings", JSONB, nullable=False, server_default="{}"),
    Column("row_limit", BigInteger, nullable=False),
    Column("timeout_s", Integer, nullable=False),
    flag("in_history", default=True),
    Column("parent_uuid", Text, nullable=False, server_default=""),
    moment("recorded_at", nullable=False, now=True),
    moment("deadline_at", nullable=False),
    moment("sent_at"),
    moment("ended_at"),
    moment("expires_at"),
    moment("last_used_at", nullable=False, now=True),
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
    moment("lease_until"),
    moment("cancel_requested_at"),
    Column("canceled_by", Text),
    Column("cursor_row", BigInteger, nullable=False, server_default="0"),
    Column("inline_result", LargeBinary, comment="the whole result as an Arrow stream, when it is small"),
    Column("import_plan", JSONB, comment="set: no statement for the engine, but a file to make a table from"),
    Column("sealed_token", LargeBinary, comment="encrypted: the caller's external token, while an engine needs it"),
    moment("token_expires_at"),
    Column(
        "text_bytes",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="what counts against the user's quota of text: long texts, until they are cut",
    ),
    Column(
        "text_is_cut",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="only the beginning of the statement is left",
    ),
    Column(
        "limit_source",
        Text,
        comment="`default`, `caller` or `maximum`: where `row_limit` comes from; null: an old row",
    ),
    Column("error_line", Integer, comment="line of the statement, from 1; null: not known"),
    Column("error_column", Integer, comment="column of that line, from 1; null: not known"),
    Column("search_name", Text, Computed(SEARCH_NAME), nullable=False, comment="first words, folded: `db.documents`"),
    Column("search_words", Text, Computed(SEARCH_WORDS), nullable=False, comment="the same without punctuation"),
    Index("ix_statements_history", "user_id", text("recorded_at desc"), text("history_id desc")),
    Index("ix_statements_active", "user_id", postgresql_where=text("state in ('waiting', 'running')")),
    Index("ix_statements_claimable", "lease_until", postgresql_where=text("state in ('waiting', 'running')")),
    Index("ix_statements_waiting", "connector", "history_id", postgresql_where=text("state = 'waiting'")),
    Index("ix_statements_session", "session_id", postgresql_where=text("state in ('waiting', 'running')")),
    Index("ix_statements_expiry", "expires_at", postgresql_where=text("state = 'available'")),
    Index("ix_statements_spool", "user_id", postgresql_where=text("state = 'available' and size_bytes > 32768")),
    Index("ix_statements_texts", "user_id", "text_bytes", postgresql_where=text("text_bytes > 0")),
    Index("ix_statements_script", "script_id", postgresql_where=text("script_id is not null")),
    Index("ix_statements_recorded_at", "recorded_at"),
    Index("ix_statements_dialects", "user_id", "dialect", postgresql_where=text("in_history")),
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
    moment("since", nullable=False, now=True),
    comment="Results whose bytes are still to be deleted: written with the change of state, emptied by the sweep",
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("statement_id", UUID(as_uuid=True), nullable=False),
    moment("created_at", nullable=False, now=True),
    PrimaryKeyConstraint("user_id", "key"),
    Index(None, "created_at"),
)

engine_owners = Table(
    "engine_owners",
    metadata,
    Column("connector", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    moment("lease_until", nullable=False),
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
    moment("looked_at", nullable=False),
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
    moment("changed_at", nullable=False),
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
    moment("asked_at", nullable=False, now=True),
    moment("taken_at"),
    comment="Looks at data that another process holds, while somebody waits for them",
    prefixes=["UNLOGGED"],
)

FURTHER = (
    connector_tables.connectors,
    connector_tables.connector_state,
    identity_tables.external_identities,
    identity_tables.login_networks,
    request_tables.request_counts,
    import_tables.import_uploads,
    import_tables.import_leftovers,
    search_tables.metadata_scopes,
    search_tables.metadata_objects,
    storage_tables.unfinished_writes,
    storage_tables.part_uploads,
    storage_tables.part_upload_parts,
    storage_tables.storage_operations,
    storage_tables.storage_transfers,
    storage_tables.storage_transfer_keys,
)
"""Tables that are declared elsewhere."""
