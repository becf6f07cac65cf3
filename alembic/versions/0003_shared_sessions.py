"""shared sessions

Revision: 0003, after 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shared_sessions",
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="of database and settings"),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("guid", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_shared_sessions_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "connector", "digest", name=op.f("pk_shared_sessions")),
        comment="The session that statements of a user share, where a connector has shared_session",
    )


def downgrade() -> None:
    op.drop_table("shared_sessions")
