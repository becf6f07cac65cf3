"""stored connectors, and callers' own tokens beside what needs them

Revision: 0009, after 0008
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "connectors",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("nice_name", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("interface", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "settings",
            postgresql.JSONB(),
            server_default="[]",
            nullable=False,
            comment="name and value in order; secrets masked",
        ),
        sa.Column(
            "sealed_secrets",
            sa.LargeBinary(),
            nullable=True,
            comment="encrypted: the whole values of settings that hold secrets",
        ),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column(
            "example_digest",
            sa.Text(),
            nullable=True,
            comment="what examples/install put here; null: not from there, or edited since",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_connectors")),
        comment="Connector instances; a deleted one leaves its names as a tombstone, and its id is never used again",
    )
    op.create_index(
        "uq_connectors_name",
        "connectors",
        [sa.text("lower(nice_name)")],
        unique=True,
        postgresql_where=sa.text("deleted_at is null"),
    )
    state = op.create_table(
        "connector_state",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False, comment="up by one with each change"),
        sa.CheckConstraint("single", name=op.f("ck_connector_state_one_row")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_connector_state")),
        comment="One row: the number of the present state of all connectors; changes take turns by locking it",
    )
    op.bulk_insert(state, [{"single": True, "version": 0}])
    op.add_column(
        "statements",
        sa.Column(
            "sealed_token",
            sa.LargeBinary(),
            nullable=True,
            comment="encrypted: the caller's external token, while an engine needs it",
        ),
    )
    op.add_column("statements", sa.Column("token_expires_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("statements", "token_expires_at")
    op.drop_column("statements", "sealed_token")
    op.drop_table("connector_state")
    op.drop_table("connectors")
