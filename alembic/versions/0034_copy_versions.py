"""Versions of the copies that a move or copy has made, so that a rollback deletes no other file. Only adds a column.

Revision: 0034, after 0033
"""

from alembic import op

revision = "0034"
down_revision = "0033"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table storage_transfer_keys add column copy_version text not null default ''")
