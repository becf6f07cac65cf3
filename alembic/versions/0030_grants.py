"""Grants of results to users and groups. Only adds a table and columns.

Revision: 0030, after 0029
"""

from alembic import op

revision = "0030"
down_revision = "0029"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- To whom the owner of a statement has granted its result: to a user or to a group (ADR 90)
create table result_grants (
    statement_id uuid not null references statements on delete cascade,
    user_id bigint references users on delete cascade,
    group_id bigint references groups on delete cascade,
    title text not null default '', -- what the owner calls the result
    granted_at timestamptz not null default now(),
    valid_until timestamptz not null,
    check ((user_id is null) <> (group_id is null))
);
create unique index ix_result_grants_statement
    on result_grants (statement_id, coalesce(user_id, 0), coalesce(group_id, 0));
create index ix_result_grants_user on result_grants (user_id) where user_id is not null;
create index ix_result_grants_group on result_grants (group_id) where group_id is not null;

-- Whether the rows may depend on the rights of the statement's owner, because it has read files or its session used the
-- owner's own login; and the connectors whose results it has read ('': results of other users). This limits to whom its
-- result may be granted. Null: not known, because an older program has run the statement.
alter table statements add column uses_own_rights boolean, add column read_connectors text[];
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
