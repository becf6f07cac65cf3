"""The SQLSTATE of a failed statement. Only adds.

Revision: 0022, after 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
oldest_program = "0018"
branch_labels = None
depends_on = None

# One statement ends at each semicolon before a line break.
SCHEMA = r"""
-- Five characters, where the engine's error has or implies them
alter table statements add column error_sqlstate text;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
