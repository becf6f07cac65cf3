"""the index of the metadata search

Revision: 0011, after 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _scopes()
    _objects()


def _scopes() -> None:
    op.create_table(
        "metadata_scopes",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("connector", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True, comment="null: the same for all callers"),
        sa.Column("stored", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("address", sa.LargeBinary(), nullable=False, comment="digest: where the objects were read"),
        sa.Column(
            "version",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="up by one with each change of objects",
        ),
        sa.Column(
            "epoch",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="up by one when objects were removed",
        ),
        sa.Column("truncated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("refreshed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_metadata_scopes_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metadata_scopes")),
        comment="Whose view of which data source is indexed, and how new it is",
    )
    op.create_index(
        "uq_metadata_scopes", "metadata_scopes", ["connector", sa.text("coalesce(user_id, 0)")], unique=True
    )
    op.create_index(op.f("ix_metadata_scopes_user_id"), "metadata_scopes", ["user_id"])


def _objects() -> None:
    op.create_table(
        "metadata_objects",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("scope_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="DATABASE, TABLE or VIEW"),
        sa.Column("database", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="of the table; empty: the database itself"),
        sa.Column("comment", sa.Text(), server_default="", nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "columns",
            sa.Text(),
            nullable=True,
            comment="names and comments between U+001F and U+001E; null: not known yet",
        ),
        sa.Column("columns_cut", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "version",
            sa.BigInteger(),
            nullable=False,
            comment="that of the scope when the object was changed last",
        ),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["scope_id"],
            ["metadata_scopes.id"],
            name=op.f("fk_metadata_objects_scope_id_metadata_scopes"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metadata_objects")),
        comment="Databases and tables of data sources, as the metadata search finds them",
    )
    op.create_index("uq_metadata_objects", "metadata_objects", ["scope_id", "database", "name"], unique=True)
    op.create_index(op.f("ix_metadata_objects_scope_id_version"), "metadata_objects", ["scope_id", "version"])


def downgrade() -> None:
    op.drop_table("metadata_objects")
    op.drop_table("metadata_scopes")
