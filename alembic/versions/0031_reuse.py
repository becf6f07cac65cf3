"""Answers from stored results: a digest to find them by, and the origin of their rows.

Only adds columns and an index, so programs of the previous version can keep running.

Revision: 0031, after 0030
"""

from alembic import op

revision = "0031"
down_revision = "0030"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
alter table statements
    -- keyed digest of what determines the rows; null: they cannot answer another statement, or no longer
    add column reuse_key bytea,
    -- the statement that was sent to the data source for these rows, and when; null: this one
    add column reused_from uuid,
    add column reused_sent_at timestamptz;

create index ix_statements_reuse on statements (reuse_key, ended_at) where state = 'available' and reuse_key is not null;
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
