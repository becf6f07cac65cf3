"""what users want where a call does not say it

Revision: 0017, after 0016
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "users",
        sa.Column(
            "preferences",
            JSONB,
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="what the user wants where a call does not say it; a name that is missing has its default",
        ),
    )


def downgrade() -> None:
    op.drop_column("users", "preferences")
