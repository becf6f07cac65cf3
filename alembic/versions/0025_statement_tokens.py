"""The API token that a statement came with: it limits what the statement may reach. Only adds.

Revision: 0025, after 0024
"""

from alembic import op

revision = "0025"
down_revision = "0024"
oldest_program = "0018"
branch_labels = None
depends_on = None

# One statement ends at each semicolon before a line break.
SCHEMA = r"""
-- What the statement itself may reach (files, results) when it runs; null: it was sent without an API token
alter table statements add column api_token jsonb;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
