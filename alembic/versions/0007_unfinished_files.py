"""unfinished files by their names

Revision: 0007, after 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "unfinished_writes",
        sa.Column(
            "name",
            sa.Text(),
            server_default=sa.text("''"),
            nullable=False,
            comment="of the entry that is written; empty: not known",
        ),
    )


def downgrade() -> None:
    op.drop_column("unfinished_writes", "name")
