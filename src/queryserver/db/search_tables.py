"""Tables of the metadata index."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Table,
    Text,
    text,
)

from queryserver.db.columns import flag, metadata, moment

_PUNCTUATION = "".join(chr(code) for code in range(33, 127) if not chr(code).isalnum())

# The name of a document: up to 100 characters of its statement. lower() of the collation "C" knows ASCII only.
SEARCH_NAME = (
    r"""left(regexp_replace(btrim(left(lower(statement collate "C"), 400), E' \t\r\n'), """
    r"""'[ \t\r\n]+', ' ', 'g'), 100)"""
)
SEARCH_WORDS = f"""' ' || translate({SEARCH_NAME}, '{_PUNCTUATION.replace("'", "''")}', '{" " * len(_PUNCTUATION)}')"""

metadata_scopes = Table(
    "metadata_scopes",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("connector", Text, nullable=False),
    Column("user_id", BigInteger, ForeignKey("users.id", ondelete="CASCADE"), comment="null: the same for all callers"),
    flag("stored", default=False),
    Column("address", LargeBinary, nullable=False, comment="digest: where the objects were read"),
    Column("version", BigInteger, nullable=False, server_default="0", comment="up by one with each change of objects"),
    Column("epoch", BigInteger, nullable=False, server_default="0", comment="up by one when objects were removed"),
    flag("truncated", default=False),
    moment("refreshed_at"),
    moment("failed_at"),
    moment("used_at", nullable=False, now=True),
    Column("lease_owner", Text),
    moment("lease_until"),
    Index("uq_metadata_scopes", "connector", text("coalesce(user_id, 0)"), unique=True),
    Index(None, "user_id"),
    comment="Whose view of which data source is indexed, and how new it is",
)

metadata_objects = Table(
    "metadata_objects",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("scope_id", BigInteger, ForeignKey("metadata_scopes.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False, comment="DATABASE, TABLE or VIEW"),
    Column("database", Text, nullable=False),
    Column("name", Text, nullable=False, comment="of the table; empty: the database itself"),
    Column("comment", Text, nullable=False, server_default=""),
    Column("owner", Text, nullable=False, server_default=""),
    moment("modified_at"),
    Column("columns", Text, comment="names and comments between U+001F and U+001E; null: not known yet"),
    flag("columns_cut", default=False),
    Column("version", BigInteger, nullable=False, comment="that of the scope when the object was changed last"),
    moment("changed_at", nullable=False, now=True),
    Index("uq_metadata_objects", "scope_id", "database", "name", unique=True),
    Index(None, "scope_id", "version"),
    comment="Databases and tables of data sources, as the metadata search finds them",
)
