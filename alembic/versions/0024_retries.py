"""Whether a read-only statement was run again because its process died. Only adds a column.

Revision: 0024, after 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- Its process died after it was sent, and it waits or ran once more: that happens once
alter table statements add column was_retried boolean not null default false;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
