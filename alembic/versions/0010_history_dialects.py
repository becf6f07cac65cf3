"""history dialects

Revision: 0010, after 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_statements_dialects", "statements", ["user_id", "dialect"], postgresql_where=sa.text("in_history")
    )


def downgrade() -> None:
    op.drop_index("ix_statements_dialects", table_name="statements")
