"""Schedules that run saved queries with parameters, and export their rows. Only adds columns.

Revision: 0032, after 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # `into` has the destination as sent (`given`) and in its stored form (`destination`).
    op.execute('alter table schedules add column document text, add column parameters jsonb, add column "into" jsonb')
