"""Parameter values of statements. Only adds columns.

Revision: 0021, after 0020
"""

from alembic import op

revision = "0021"
down_revision = "0020"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
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
