"""forwarded looks

Revision: 0004, after 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "forwarded_looks",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False, comment="the process that is asked"),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_forwarded_looks_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_forwarded_looks")),
        comment="Looks at data that another process holds, while somebody waits for them",
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    op.drop_table("forwarded_looks")
