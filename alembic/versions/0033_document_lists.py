"""Indexes of the lists and searches of documents. Adds a table, a column and triggers, so older programs keep them
up to date.

Revision: 0033, after 0032
"""

from alembic import op

revision = "0033"
down_revision = "0032"
oldest_program = "0018"
branch_labels = None
depends_on = None

STATEMENTS = (
    # A GIN index over these numbers finds texts that contain a given text, as the extension pg_trgm does, which not all
    # servers have. Each number stands for three bytes of the text in UTF-8.
    """
    create function text_trigrams(given text) returns integer[] language plpgsql immutable parallel safe as $$
    declare
        bytes bytea := convert_to(given, 'UTF8');
    begin
        return array(
            select distinct get_byte(bytes, at) * 65536 + get_byte(bytes, at + 1) * 256 + get_byte(bytes, at + 2)
            from generate_series(0, length(bytes) - 3) as at
        );
    end
    $$
    """,
    # Lists fold texts by the collation of the database, searches by "C".
    """
    create function document_trigrams(name text, description text, tags text[], statement text) returns integer[]
    language plpgsql immutable parallel safe as $$
    declare
        given text := concat_ws(E'\\n', name, description, array_to_string(tags, E'\\n'), statement);
        folded text := lower(given);
        plain text := lower(given collate "C");
    begin
        return text_trigrams(case when folded = plain then plain else folded || E'\\n' || plain end);
    end
    $$
    """,
    """
    -- The trigrams of the current version of each document. A separate table, because searches read many of its rows.
    create table document_trigrams (
        document_id bigint primary key references documents on delete cascade,
        trigrams integer[] not null
    ) with (toast_tuple_target = 128)
    """,
    # Statistics would take seconds to collect, and no query is planned with them.
    "alter table document_trigrams alter column trigrams set statistics 0",
    """
    insert into document_trigrams
    select id, document_trigrams(name, description, tags, statement) from documents
    """,
    # Without a list of pending entries, which each search would have to read.
    "create index ix_document_trigrams on document_trigrams using gin (trigrams) with (fastupdate = off)",
    "create index ix_documents_tags on documents using gin (tags) with (fastupdate = off)",
    "create index ix_documents_all_folders on documents (folder, modified_at desc, id desc) where trashed_at is null",
    # A copy of documents.modified_at, so that the documents shared with a user are read in the order of their list
    "alter table document_grants add column modified_at timestamptz",
    "update document_grants g set modified_at = d.modified_at from documents d where d.id = g.document_id",
    "alter table document_grants alter column modified_at set not null",
    """
    create index ix_document_grants_user_list on document_grants (user_id, modified_at desc, document_id desc)
    where user_id is not null
    """,
    """
    create index ix_document_grants_group_list on document_grants (group_id, modified_at desc, document_id desc)
    where group_id is not null
    """,
    """
    create function document_saved() returns trigger language plpgsql as $$
    begin
        insert into document_trigrams
        values (new.id, document_trigrams(new.name, new.description, new.tags, new.statement))
        on conflict (document_id) do update set trigrams = excluded.trigrams;
        if tg_op = 'UPDATE' then
            update document_grants set modified_at = new.modified_at where document_id = new.id;
        end if;
        return null;
    end
    $$
    """,
    # Not for moves, and not for changes of the owner or of the trash
    """
    create trigger document_saved after insert or update of name, description, tags, statement, modified_at
    on documents for each row execute function document_saved()
    """,
    """
    create function document_granted() returns trigger language plpgsql as $$
    begin
        new.modified_at := (select modified_at from documents where id = new.document_id);
        return new;
    end
    $$
    """,
    """
    create trigger document_granted before insert on document_grants
    for each row execute function document_granted()
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
