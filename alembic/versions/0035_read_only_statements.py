"""What a statement may do and cost, and the trace of its call. Only adds columns.

Revision: 0035, after 0034
"""

from alembic import op

revision = "0035"
down_revision = "0034"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "alter table statements add column read_only boolean not null default false, add column traceparent text,"
        " add column max_estimated_bytes bigint"
    )
