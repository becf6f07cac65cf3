"""Values of the parameters of statements. Only adds.

Revision: 0020, after 0019
"""

from alembic import op

revision = "0020"
down_revision = "0019"
oldest_program = "0018"
branch_labels = None
depends_on = None

# One statement ends at each semicolon before a line break.
SCHEMA = r"""
-- The values of the whole script, sealed; null: it has no places. A program of the former version sends the text as it
-- is, which an engine refuses
alter table statements add column sealed_parameters bytea;
-- How many places the statement itself has
alter table statements add column parameter_count integer not null default 0;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
