"""API tokens, and service accounts, which have API tokens but no login. Only adds tables and columns.

Revision: 0020, after 0019
"""

from alembic import op

revision = "0020"
down_revision = "0019"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- A service account: no login, only API tokens
alter table users add column is_service_account boolean not null default false;

create table api_tokens (
    id uuid primary key,
    user_id bigint not null references users on delete cascade,
    name text not null,
    digest bytea not null unique, -- SHA-256 of the token, which is kept nowhere
    scopes text[] not null,
    connectors text[], -- null: all that the user may use
    token_epoch integer not null, -- of the user when it was made: a raised one ends it
    created_at timestamptz not null default now(),
    created_by text not null, -- name of the user or account that made it
    expires_at timestamptz not null,
    last_used_at timestamptz, -- to the minute
    revoked_at timestamptz
);
create index ix_api_tokens_user on api_tokens (user_id, created_at);
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
