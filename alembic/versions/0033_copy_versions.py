"""Versions of the copies that a move or copy has made, so that a rollback deletes no other file. Only adds a column.

Revision: 0033, after 0032
"""

from alembic import op

revision = "0033"
down_revision = "0032"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table storage_transfer_keys add column copy_version text not null default ''")
