"""Operations that run a whole script, with a row for each statement that was started. Only adds columns and an index.

Revision: 0023, after 0022
"""

from alembic import op

revision = "0023"
down_revision = "0022"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- The call sent run_all
alter table statements add column runs_all boolean not null default false;
-- The operation of a whole script: its statements have rows of their own, and no runner claims this one. Its lease never
-- ends, so that a program of the former version does not claim it either
alter table statements add column is_script boolean not null default false;
-- Of a statement of such a script: its operation
alter table statements add column operation_id uuid references statements on delete cascade;
create index ix_statements_operation on statements (operation_id, statement_index) where operation_id is not null;
-- A statement before it was begun in its session: it runs there or not at all
alter table statements add column needs_session boolean not null default false;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
