"""long texts of statements: counted for each user, stored once, cut some time after their end

Revision: 0014, after 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "statements",
        sa.Column(
            "text_bytes",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="what counts against the user's quota of text: long texts, until they are cut",
        ),
    )
    op.add_column(
        "statements",
        sa.Column(
            "text_is_cut",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="only the beginning of the statement is left",
        ),
    )
    op.create_index(
        "ix_statements_texts",
        "statements",
        ["user_id", "text_bytes"],
        postgresql_where=sa.text("text_bytes > 0"),
    )
    op.create_index(
        "ix_statements_script", "statements", ["script_id"], postgresql_where=sa.text("script_id is not null")
    )
    op.add_column("scripts", sa.Column("user_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key("fk_scripts_user_id_users", "scripts", "users", ["user_id"], ["id"], ondelete="CASCADE")
    op.add_column(
        "scripts",
        sa.Column("digest", sa.LargeBinary(), nullable=True, comment="SHA-256; null: of a former version"),
    )
    op.add_column(
        "scripts",
        sa.Column("text_bytes", sa.BigInteger(), server_default="0", nullable=False, comment="as in statements"),
    )
    op.add_column(
        "scripts",
        sa.Column(
            "text_is_cut",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="only the beginning of the body is left",
        ),
    )
    op.create_index(
        "uq_scripts_digest",
        "scripts",
        ["user_id", "digest"],
        unique=True,
        postgresql_where=sa.text("not text_is_cut"),
    )
    op.create_index(
        "ix_scripts_texts", "scripts", ["user_id", "text_bytes"], postgresql_where=sa.text("text_bytes > 0")
    )
    # The long texts that are there count, too: only they are written anew.
    op.execute("update statements set text_bytes = octet_length(statement) where octet_length(statement) > 16384")
    op.execute(
        "update scripts set text_bytes = octet_length(body),"
        " user_id = (select user_id from statements where script_id = scripts.id limit 1)"
        " where octet_length(body) > 16384"
    )


def downgrade() -> None:
    op.drop_index("ix_scripts_texts", table_name="scripts")
    op.drop_index("uq_scripts_digest", table_name="scripts")
    for name in ("text_is_cut", "text_bytes", "digest", "user_id"):
        op.drop_column("scripts", name)
    op.drop_index("ix_statements_script", table_name="statements")
    op.drop_index("ix_statements_texts", table_name="statements")
    op.drop_column("statements", "text_is_cut")
    op.drop_column("statements", "text_bytes")
