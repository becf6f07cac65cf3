"""Statements that only read and were run again after their process died. Only adds.

Revision: 0024, after 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
oldest_program = "0018"
branch_labels = None
depends_on = None

# One statement ends at each semicolon before a line break.
SCHEMA = r"""
-- Its process died after it was sent, and it waits or ran once more: that happens once
alter table statements add column was_retried boolean not null default false;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
