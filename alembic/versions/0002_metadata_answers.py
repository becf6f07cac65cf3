"""metadata answers

Revision: 0002, after 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "metadata_answers",
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="of what was asked"),
        sa.Column("value", sa.LargeBinary(), nullable=False, comment="compressed"),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_metadata_answers_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "connector", "digest", name=op.f("pk_metadata_answers")),
        comment="What catalogues of data sources answered lately; unlogged, for a crash may lose it",
        prefixes=["UNLOGGED"],
    )
    op.create_index(op.f("ix_metadata_answers_looked_at"), "metadata_answers", ["looked_at"], unique=False)
    op.create_table(
        "metadata_changes",
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_metadata_changes_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "connector", name=op.f("pk_metadata_changes")),
        comment="When a user last changed objects of a data source: answers from before do not count",
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    op.drop_table("metadata_changes")
    op.drop_index(op.f("ix_metadata_answers_looked_at"), table_name="metadata_answers")
    op.drop_table("metadata_answers")
