"""One lease for each process: owners and fences of all rows that a process works on. Only adds columns and indexes.

Revision: 0026, after 0025
"""

from alembic import op

revision = "0026"
down_revision = "0025"
oldest_program = "0018"
branch_labels = None
depends_on = None

# A semicolon at the end of a line ends a statement.
SCHEMA = r"""
-- When the process counts as dead unless it sends another heartbeat; null: an older program, which has no such lease
alter table instances add column alive_until timestamptz;

-- The owner is an instance; each claim increments the fence (ADR 84)
alter table sessions add column fence bigint not null default 0;
alter table engine_owners add column fence bigint not null default 0;
alter table tasks add column owner text;
alter table deliveries add column owner text, add column fence bigint not null default 0;
alter table part_uploads add column owner text, add column fence bigint not null default 0;
alter table part_upload_parts add column owner text, add column fence bigint not null default 0;
alter table unfinished_writes add column owner text, add column fence bigint not null default 0;
alter table storage_operations add column owner text, add column fence bigint not null default 0;
alter table import_leftovers add column owner text, add column fence bigint not null default 0;
alter table metadata_scopes add column owner text, add column fence bigint not null default 0;
alter table result_reads add column owner text, add column fence bigint not null default 0;

-- The rows that a process owns, in the tables that also have many rows without an owner
create index ix_deliveries_owner on deliveries (owner) where claimed_until = 'infinity';
create index ix_part_upload_parts_owner on part_upload_parts (owner) where claimed_until = 'infinity';
create index ix_storage_operations_owner on storage_operations (owner) where lease_until = 'infinity';
create index ix_storage_transfers_owner on storage_transfers (owner) where lease_until = 'infinity';
"""


def upgrade() -> None:
    for statement in SCHEMA.rstrip().removesuffix(";").split(";\n"):
        op.get_bind().exec_driver_sql(statement)
