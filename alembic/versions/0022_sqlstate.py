"""The SQLSTATE of a failed statement. Only adds a column.

Revision: 0022, after 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- Five characters, where the engine's error has or implies them
alter table statements add column error_sqlstate text;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
