"""uploads of files

Revision: 0005, after 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _unfinished_writes()
    _part_uploads()
    _parts()


def _unfinished_writes() -> None:
    op.create_table(
        "unfinished_writes",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("scheme", sa.Text(), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False, comment="relative to the root of the store"),
        sa.Column("username", sa.Text(), nullable=False, comment="as whom the store is used"),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _moment("touched_at", now=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_unfinished_writes")),
        comment="Directories that are written to: when a crash leaves its row, its temporary files are swept there",
    )
    op.create_index(op.f("ix_unfinished_writes_touched_at"), "unfinished_writes", ["touched_at"])


def _part_uploads() -> None:
    op.create_table(
        "part_uploads",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True, comment="null: the user is gone"),
        sa.Column("client_uuid", sa.UUID(), nullable=False, comment="qquuid on the wire"),
        sa.Column("username", sa.Text(), nullable=False, comment="as whom the store is used"),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("scheme", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False, comment="of the file, relative to the root of the store"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("part_bytes", sa.BigInteger(), nullable=False, comment="of every part but the last"),
        sa.Column("parts", sa.Integer(), nullable=False),
        sa.Column("overwrite", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, comment="open or done"),
        sa.Column(
            "staging",
            sa.Text(),
            nullable=True,
            comment="the place of the parts, in the store's own words; null: not prepared yet",
        ),
        sa.Column("claimed_by", sa.UUID(), nullable=True, comment="who prepares, joins or removes it at the moment"),
        _moment("claimed_until", nullable=True),
        sa.Column("result", postgresql.JSONB(), nullable=True, comment="the entry that the parts became"),
        _moment("created_at", now=True),
        _moment("expires_at"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_part_uploads_user_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_part_uploads")),
        sa.UniqueConstraint("user_id", "client_uuid", name=op.f("uq_part_uploads_user_id_client_uuid")),
    )
    op.create_index(op.f("ix_part_uploads_expires_at"), "part_uploads", ["expires_at"])


def _parts() -> None:
    op.create_table(
        "part_upload_parts",
        sa.Column("upload_id", sa.UUID(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=True, comment="null: still on its way"),
        sa.Column(
            "receipt",
            sa.Text(),
            nullable=True,
            comment="what the store wants to hear again when the parts are joined",
        ),
        sa.Column("claimed_by", sa.UUID(), nullable=True, comment="who writes it at the moment"),
        _moment("claimed_until", nullable=True),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["part_uploads.id"], name=op.f("fk_part_upload_parts_upload_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "index", name=op.f("pk_part_upload_parts")),
    )


def _moment(name: str, *, nullable: bool = False, now: bool = False) -> sa.Column[object]:
    default = sa.text("now()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable)


def downgrade() -> None:
    op.drop_table("part_upload_parts")
    op.drop_table("part_uploads")
    op.drop_table("unfinished_writes")
