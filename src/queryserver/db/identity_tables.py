"""Tables of identities of other issuers, and of the networks that users log in from."""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text, text

from queryserver.db.columns import metadata, moment

external_identities = Table(
    "external_identities",
    metadata,
    Column("issuer", Text, nullable=False, comment="`jwt:` and the iss, `ldap`, or the class of a plug-in"),
    Column("subject", Text, nullable=False, comment="the name as the issuer writes it; of `ldap` without case"),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column(
        "by_administrator",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="linked by a command, not at the first call",
    ),
    moment("linked_at", nullable=False, now=True),
    PrimaryKeyConstraint("issuer", "subject"),
    Index(None, "user_id"),
    comment="Identities of other issuers and the users that they are",
)

login_networks = Table(
    "login_networks",
    metadata,
    Column("name", Text, nullable=False, comment="digest of a user name, as in login_failures"),
    Column("network", Text, nullable=False, comment="digest of an address or an IPv6 network of 64 bits"),
    moment("last_login_at", nullable=False, now=True),
    PrimaryKeyConstraint("name", "network"),
    Index(None, "last_login_at"),
    comment="Networks of recent logins: failures from other networks do not lock the user out of them",
)
