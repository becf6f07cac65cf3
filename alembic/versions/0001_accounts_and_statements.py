"""accounts and statements

Revision: 0001, after
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE SEQUENCE session_ids")
    op.create_table(
        "doomed_results",
        sa.Column("statement_id", sa.UUID(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("statement_id", name=op.f("pk_doomed_results")),
        comment="Results whose bytes are still to be deleted: written with the change of state, emptied by the sweep",
    )
    op.create_table(
        "engine_owners",
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("connector", name=op.f("pk_engine_owners")),
        comment="Which process holds an engine whose data belong to one process at a time",
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_facts")),
        comment="Facts about this deployment, such as the fingerprint of its signing key",
    )
    op.create_table(
        "groups",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("name", name=op.f("uq_groups_name")),
    )
    op.create_table(
        "login_failures",
        sa.Column("key", sa.Text(), nullable=False, comment="digest of a name, an address, or both"),
        sa.Column("window_started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_login_failures")),
    )
    op.create_index(op.f("ix_login_failures_window_started_at"), "login_failures", ["window_started_at"], unique=False)
    op.create_table(
        "revoked_tokens",
        sa.Column("token_id", sa.Text(), nullable=False, comment="a family, or the jti of one token"),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_revoked_tokens")),
    )
    op.create_index(op.f("ix_revoked_tokens_expires_at"), "revoked_tokens", ["expires_at"], unique=False)
    op.create_table(
        "rotated_tokens",
        sa.Column("jti", sa.Text(), nullable=False, comment="a refresh token that was exchanged for its successor"),
        sa.Column("rotated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("jti", name=op.f("pk_rotated_tokens")),
    )
    op.create_index(op.f("ix_rotated_tokens_expires_at"), "rotated_tokens", ["expires_at"], unique=False)
    op.create_table(
        "scripts",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scripts")),
        comment="Scripts of more than one statement, shared by the operations that run them one by one",
    )
    op.create_table(
        "users",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("username", sa.Text(), nullable=False, comment="as shown"),
        sa.Column("username_key", sa.Text(), nullable=False, comment="folded by the case rule; compared"),
        sa.Column("first_name", sa.Text(), server_default="", nullable=False),
        sa.Column("last_name", sa.Text(), server_default="", nullable=False),
        sa.Column("email", sa.Text(), server_default="", nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True, comment="argon2id; null: no local login"),
        sa.Column("is_active", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("token_epoch", sa.Integer(), server_default="0", nullable=False, comment="raised to end all tokens"),
        sa.Column("last_login", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("username_key", name=op.f("uq_users_username_key")),
    )
    op.create_table(
        "group_members",
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_group_members_group_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_group_members_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "group_id", name=op.f("pk_group_members")),
    )
    op.create_index(op.f("ix_group_members_group_id"), "group_members", ["group_id"], unique=False)
    op.create_table(
        "group_rights",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("right", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_group_rights_group_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("group_id", "right", name=op.f("pk_group_rights")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("statement_id", sa.UUID(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_idempotency_keys_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "sessions",
        sa.Column(
            "id",
            sa.BigInteger(),
            nullable=False,
            comment="from session_ids",
        ),
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("named", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "properties",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default="[]",
            nullable=False,
            comment="as given, without secrets",
        ),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.Column("sealed_credentials", sa.LargeBinary(), nullable=True, comment="encrypted; for the session's life"),
        sa.Column("owner", sa.Text(), nullable=False, comment="the instance that holds the engine session"),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("idle_s", sa.Integer(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sessions_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index(
        "ix_sessions_open",
        "sessions",
        ["user_id", "connector"],
        unique=False,
        postgresql_where=sa.text("closed_at is null"),
    )
    op.create_table(
        "statements",
        sa.Column("id", sa.UUID(), nullable=False, comment="history_uuid on the wire"),
        sa.Column("history_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("script_id", sa.BigInteger(), nullable=True, comment="null: the script is this one statement"),
        sa.Column("statement_index", sa.Integer(), nullable=False),
        sa.Column("statements_count", sa.Integer(), nullable=False),
        sa.Column(
            "position", sa.ARRAY(sa.Integer()), nullable=False, comment="start row, start column, end row, end column"
        ),
        sa.Column("statement_hash", sa.Text(), nullable=False),
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("session_guid", sa.Text(), nullable=False),
        sa.Column("in_named_session", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("keeps_session", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("database", sa.Text(), nullable=True),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.Column("row_limit", sa.BigInteger(), nullable=False),
        sa.Column("timeout_s", sa.Integer(), nullable=False),
        sa.Column("in_history", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("parent_uuid", sa.Text(), server_default="", nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("engine_handle", sa.Text(), nullable=True, comment="token by which another instance re-attaches"),
        sa.Column("has_result_set", sa.Boolean(), nullable=False),
        sa.Column("modified_row_count", sa.BigInteger(), nullable=True),
        sa.Column("columns", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("truncated_reason", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("progress", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("jobs", postgresql.JSONB(astext_type=sa.Text()), server_default="[]", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("canceled_by", sa.Text(), nullable=True),
        sa.Column("cursor_row", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "inline_result",
            sa.LargeBinary(),
            nullable=True,
            comment="the whole result as an Arrow stream, when it is small",
        ),
        sa.ForeignKeyConstraint(["script_id"], ["scripts.id"], name=op.f("fk_statements_script_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_statements_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_statements")),
        sa.UniqueConstraint("guid", name=op.f("uq_statements_guid")),
        sa.UniqueConstraint("history_id", name=op.f("uq_statements_history_id")),
    )
    op.create_index(
        "ix_statements_active",
        "statements",
        ["user_id"],
        unique=False,
        postgresql_where=sa.text("state in ('waiting', 'running')"),
    )
    op.create_index(
        "ix_statements_claimable",
        "statements",
        ["lease_until"],
        unique=False,
        postgresql_where=sa.text("state in ('waiting', 'running')"),
    )
    op.create_index(
        "ix_statements_expiry",
        "statements",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'available'"),
    )
    op.create_index(
        "ix_statements_history",
        "statements",
        ["user_id", sa.literal_column("recorded_at desc"), sa.literal_column("history_id desc")],
        unique=False,
    )
    op.create_index("ix_statements_recorded_at", "statements", ["recorded_at"], unique=False)
    op.create_index(
        "ix_statements_session",
        "statements",
        ["session_id"],
        unique=False,
        postgresql_where=sa.text("state in ('waiting', 'running')"),
    )
    op.create_index(
        "ix_statements_spool",
        "statements",
        ["user_id"],
        unique=False,
        postgresql_where=sa.text("state = 'available' and size_bytes > 32768"),
    )
    op.create_table(
        "result_segments",
        sa.Column("statement_id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("start_row", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["statement_id"], ["statements.id"], name=op.f("fk_result_segments_statement_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("statement_id", "number", name=op.f("pk_result_segments")),
    )
    op.create_table(
        "statement_logs",
        sa.Column("statement_id", sa.UUID(), nullable=False),
        sa.Column("start_line", sa.Integer(), nullable=False, comment="number of the first line of this piece"),
        sa.Column("lines", sa.ARRAY(sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["statement_id"], ["statements.id"], name=op.f("fk_statement_logs_statement_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("statement_id", "start_line", name=op.f("pk_statement_logs")),
    )


def downgrade() -> None:
    op.drop_table("statement_logs")
    op.drop_table("result_segments")
    op.drop_index(
        "ix_statements_spool",
        table_name="statements",
        postgresql_where=sa.text("state = 'available' and size_bytes > 32768"),
    )
    op.drop_index(
        "ix_statements_session", table_name="statements", postgresql_where=sa.text("state in ('waiting', 'running')")
    )
    op.drop_index("ix_statements_recorded_at", table_name="statements")
    op.drop_index("ix_statements_history", table_name="statements")
    op.drop_index("ix_statements_expiry", table_name="statements", postgresql_where=sa.text("state = 'available'"))
    op.drop_index(
        "ix_statements_claimable", table_name="statements", postgresql_where=sa.text("state in ('waiting', 'running')")
    )
    op.drop_index(
        "ix_statements_active", table_name="statements", postgresql_where=sa.text("state in ('waiting', 'running')")
    )
    op.drop_table("statements")
    op.drop_index("ix_sessions_open", table_name="sessions", postgresql_where=sa.text("closed_at is null"))
    op.drop_table("sessions")
    op.drop_index(op.f("ix_idempotency_keys_created_at"), table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_table("group_rights")
    op.drop_index(op.f("ix_group_members_group_id"), table_name="group_members")
    op.drop_table("group_members")
    op.drop_table("users")
    op.drop_table("scripts")
    op.drop_index(op.f("ix_rotated_tokens_expires_at"), table_name="rotated_tokens")
    op.drop_table("rotated_tokens")
    op.drop_index(op.f("ix_revoked_tokens_expires_at"), table_name="revoked_tokens")
    op.drop_table("revoked_tokens")
    op.drop_index(op.f("ix_login_failures_window_started_at"), table_name="login_failures")
    op.drop_table("login_failures")
    op.drop_table("groups")
    op.drop_table("facts")
    op.drop_table("engine_owners")
    op.drop_table("doomed_results")
    op.execute("DROP SEQUENCE session_ids")
