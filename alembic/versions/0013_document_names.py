"""what the search ranks documents by, kept beside the statement

Revision: 0013, after 0012
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_PUNCTUATION = "".join(chr(code) for code in range(33, 127) if not chr(code).isalnum())
_NAME = (
    r"""left(regexp_replace(btrim(left(lower(statement collate "C"), 400), E' \t\r\n'), """
    r"""'[ \t\r\n]+', ' ', 'g'), 100)"""
)
_WORDS = f"""' ' || translate({_NAME}, '{_PUNCTUATION.replace("'", "''")}', '{" " * len(_PUNCTUATION)}')"""


def upgrade() -> None:
    # In one statement, so that the table is written once.
    op.execute(
        f"alter table statements add column search_name text not null generated always as ({_NAME}) stored,"
        f" add column search_words text not null generated always as ({_WORDS}) stored"
    )
    op.execute("comment on column statements.search_name is 'first words, folded: `db.documents`'")
    op.execute("comment on column statements.search_words is 'the same without punctuation'")


def downgrade() -> None:
    op.drop_column("statements", "search_words")
    op.drop_column("statements", "search_name")
