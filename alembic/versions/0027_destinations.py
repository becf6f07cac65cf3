"""Statements whose rows come from a stored result, or go to files or tables. Only adds columns.

Revision: 0027, after 0026
"""

from alembic import op

revision = "0027"
down_revision = "0026"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Older programs would run such a statement as if its text were for the engine, so they must not claim it.
    op.execute("alter table statements add column source_operation uuid, add column destination jsonb")
