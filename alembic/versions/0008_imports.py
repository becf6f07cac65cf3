"""files of the importer, and tables that imports make

Revision: 0008, after 0007
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "statements",
        sa.Column(
            "import_plan",
            postgresql.JSONB(),
            nullable=True,
            comment="set: no statement for the engine, but a file to make a table from",
        ),
    )
    _uploads()
    _leftovers()


def _uploads() -> None:
    op.create_table(
        "import_uploads",
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of the secret part of the reference"),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="the last part of the reference"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("uploaded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_import_uploads_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_import_uploads")),
        comment="Files in the upload area of the importer; a file without a row is never read",
    )
    op.create_index(op.f("ix_import_uploads_user_id"), "import_uploads", ["user_id"])
    op.create_index(op.f("ix_import_uploads_expires_at"), "import_uploads", ["expires_at"])


def _leftovers() -> None:
    op.create_table(
        "import_leftovers",
        sa.Column("statement_id", sa.UUID(), nullable=False, comment="the import; its record may be gone"),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("database", sa.Text(), nullable=True, comment="null: where the session of the import is"),
        sa.Column("table", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True, comment="somebody drops it just now"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_import_leftovers_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("statement_id", "table", name=op.f("pk_import_leftovers")),
        comment="Tables that an import has made and that must not stay: dropped when a crash leaves their row",
    )


def downgrade() -> None:
    op.drop_table("import_leftovers")
    op.drop_table("import_uploads")
    op.drop_column("statements", "import_plan")
