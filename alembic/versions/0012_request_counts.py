"""how many calls came in this minute, for the limit that all servers keep together

Revision: 0012, after 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "request_counts",
        sa.Column("caller", sa.Text(), nullable=False, comment="a user's id, or an address on public paths"),
        sa.Column("minute", sa.BigInteger(), nullable=False, comment="since 1970"),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("caller", name=op.f("pk_request_counts")),
        comment="Calls of this minute on all servers; unlogged, for a crash may lose it",
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    op.drop_table("request_counts")
