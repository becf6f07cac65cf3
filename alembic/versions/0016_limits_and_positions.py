"""where the row limit of a statement comes from, the position of its error, and the order of waiting statements

Revision: 0016, after 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "statements",
        sa.Column(
            "limit_source",
            sa.Text,
            comment="`default`, `caller` or `maximum`: where `row_limit` comes from; null: an old row",
        ),
    )
    op.add_column(
        "statements", sa.Column("error_line", sa.Integer, comment="line of the statement, from 1; null: not known")
    )
    op.add_column(
        "statements", sa.Column("error_column", sa.Integer, comment="column of that line, from 1; null: not known")
    )
    # The predicate names only `state`: with `sent_at` in it, sending a statement would touch every index.
    op.create_index(
        op.f("ix_statements_waiting"),
        "statements",
        ["connector", "history_id"],
        postgresql_where=sa.text("state = 'waiting'"),
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_statements_waiting"), "statements")
    op.drop_column("statements", "error_column")
    op.drop_column("statements", "error_line")
    op.drop_column("statements", "limit_source")
