"""long operations on files

Revision: 0006, after 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _operations()
    _transfers()
    _keys()


def _moment(name: str, *, nullable: bool = True, now: bool = False) -> sa.Column[object]:
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=sa.text("now()") if now else None, nullable=nullable
    )


def _operations() -> None:
    op.create_table(
        "storage_operations",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, comment="running, done, failed"),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True, comment="null: not known yet"),
        sa.Column("result", postgresql.JSONB(), nullable=True, comment="the final body"),
        _moment("lease_until", nullable=False),
        _moment("started_at", nullable=False, now=True),
        _moment("ended_at"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_storage_operations_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_storage_operations")),
        comment="Work on files that goes on after the answer",
    )
    op.create_index(op.f("ix_storage_operations_ended_at"), "storage_operations", ["ended_at"])


def _transfers() -> None:
    op.create_table(
        "storage_transfers",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True, comment="null: the user is gone"),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="of user, kind, source and target"),
        sa.Column("username", sa.Text(), nullable=False, comment="as whom the stores are used"),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="rename, move, copy"),
        sa.Column("source_scheme", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False, comment="relative to the root of the store"),
        sa.Column("target_scheme", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False, comment="relative to the root of the store"),
        sa.Column("overwrite", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("operation_id", sa.UUID(), nullable=True, comment="whose outcome it is, if its client asks later"),
        sa.Column("state", sa.Text(), nullable=False, comment="copying, verified, deleting, done, rolled_back, failed"),
        sa.Column("owner", sa.Text(), nullable=True, comment="the process that works on it; null: the user must call"),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        _moment("lease_until"),
        _moment("started_at", nullable=False, now=True),
        _moment("ended_at"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_storage_transfers_user_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_storage_transfers")),
        comment="Moves and copies of several steps: what a crash leaves is finished or taken back by another process",
    )
    op.create_index(
        "ix_storage_transfers_unended",
        "storage_transfers",
        ["digest"],
        unique=True,
        postgresql_where=sa.text("ended_at is null"),
    )
    op.create_index(op.f("ix_storage_transfers_ended_at"), "storage_transfers", ["ended_at"])
    op.create_index(op.f("ix_storage_transfers_operation_id"), "storage_transfers", ["operation_id"])


def _keys() -> None:
    op.create_table(
        "storage_transfer_keys",
        sa.Column("transfer_id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, comment="parents before what they hold"),
        sa.Column("path", sa.Text(), nullable=False, comment="relative to the source"),
        sa.Column("kind", sa.Text(), nullable=False, comment="dir, file, link"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        _moment("modified_at"),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("permissions", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, comment="listed, started, copied, deleted, skipped"),
        sa.ForeignKeyConstraint(
            ["transfer_id"],
            ["storage_transfers.id"],
            name=op.f("fk_storage_transfer_keys_transfer_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("transfer_id", "number", name=op.f("pk_storage_transfer_keys")),
        comment="Every entry of the source of a transfer, as it was when it was listed",
    )


def downgrade() -> None:
    op.drop_table("storage_transfer_keys")
    op.drop_table("storage_transfers")
    op.drop_table("storage_operations")
