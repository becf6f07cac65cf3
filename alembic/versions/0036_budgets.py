"""Estimates and scanned bytes of statements, and limits on estimates of API tokens. Only adds columns.

Revision: 0036, after 0035
"""

from alembic import op

revision = "0036"
down_revision = "0035"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Bytes that the engine expected the statement to read, and bytes that it reports to have read. Both are null if
    # unknown, and for statements that have ended before this migration.
    op.execute("alter table statements add column estimated_bytes bigint, add column scanned_bytes bigint")
    # The largest estimate with which a statement of the token is sent to an engine; null for no limit.
    op.execute("alter table api_tokens add column max_estimated_bytes bigint")
