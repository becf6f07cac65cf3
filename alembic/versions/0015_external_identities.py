"""which external identities are which users, and from which addresses users have logged in

Revision: 0015, after 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "external_identities",
        sa.Column("issuer", sa.Text, nullable=False, comment="`jwt:` and the iss, `ldap`, or the class of a plug-in"),
        sa.Column(
            "subject", sa.Text, nullable=False, comment="the name as the issuer writes it; of `ldap` without case"
        ),
        sa.Column("user_id", sa.BigInteger, nullable=False),
        sa.Column(
            "by_administrator",
            sa.Boolean,
            server_default=sa.text("false"),
            nullable=False,
            comment="linked by a command, not at the first call",
        ),
        sa.Column("linked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_external_identities_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_external_identities")),
        comment="Identities of other issuers and the users that they are",
    )
    op.create_index(op.f("ix_external_identities_user_id"), "external_identities", ["user_id"])
    op.create_table(
        "login_networks",
        sa.Column("name", sa.Text, nullable=False, comment="digest of a user name, as in login_failures"),
        sa.Column("network", sa.Text, nullable=False, comment="digest of an address or an IPv6 network of 64 bits"),
        sa.Column("last_login_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", "network", name=op.f("pk_login_networks")),
        comment="Networks of recent logins: failures from other networks do not lock the user out of them",
    )
    op.create_index(op.f("ix_login_networks_last_login_at"), "login_networks", ["last_login_at"])


def downgrade() -> None:
    op.drop_table("login_networks")
    op.drop_table("external_identities")
