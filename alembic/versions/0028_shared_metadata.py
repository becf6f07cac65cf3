"""Metadata that all users of a connector share. Only removes constraints.

Revision: 0028, after 0027
"""

from alembic import op

revision = "0028"
down_revision = "0027"
oldest_program = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The user 0 stands for all users. Rows of deleted users disappear with their age.
    op.execute("alter table metadata_answers drop constraint metadata_answers_user_id_fkey")
    op.execute("alter table metadata_changes drop constraint metadata_changes_user_id_fkey")
