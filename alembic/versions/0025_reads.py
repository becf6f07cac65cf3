"""Access rights of statements that read files and results, and leases of results in use. Only adds a column and table.

Revision: 0025, after 0024
"""

from alembic import op

revision = "0025"
down_revision = "0024"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- What the statement itself may reach (files, results) when it runs; null: it was sent without an API token
alter table statements add column api_token jsonb;

-- Results that statements read as tables: while the lease lasts they neither expire nor are their bytes deleted
create table result_reads (
    id uuid primary key,
    statement_id uuid not null, -- whose result it is; its record may go meanwhile
    lease_until timestamptz not null
);
create index ix_result_reads_statement_id on result_reads (statement_id);
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
