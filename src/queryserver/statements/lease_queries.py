"""SQL for statement leases: claims, and runner writes, each of which checks the owner and the fence number."""

from queryserver.platform.database import NamedQuery, notice
from queryserver.statements.rows import END_COLUMNS

ENDED = "ended"
"""Notice that a statement has ended. The subject is the statement id."""

FENCED = "id = :id and owner = :owner and fence = :fence"

ASSIGNMENT_FIELDS = (
    "user_id", "connector", "dialect", "statement", "database", "settings", "session_id", "in_named_session",
    "keeps_session", "row_limit", "history_id", "import_plan", "session_guid", "statement_index", "statements_count",
    "needs_session", "rows", "was_retried", "log_lines",
)  # fmt: skip
ASSIGNMENT = f"""{", ".join(ASSIGNMENT_FIELDS[:-1])}, id, owner, fence, sent_at, engine_handle, cancel_requested_at,
    sealed_token, token_expires_at, api_token, sealed_parameters, size_bytes, limit_source, operation_id,
    deadline_at - clock_timestamp() as left,
    (select count(*) from result_segments where statement_id = id) as segments,
    (select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs
        where statement_id = coalesce(operation_id, id)) as log_lines
"""

# If a connector is deleted while a statement is being sent, the statement would otherwise end only at its deadline.
_HAS_NO_CONNECTOR = """exists (
    select from connectors where id::text = orphan.connector and deleted_at is not null
)"""

# Also claims earlier waiting statements of the same session, because the statements of a session run in order.
CLAIM = f"""
update statements as orphan set owner = $2, fence = fence + 1, lease_until = now() + $3
where id in (
        select one.id from statements as announced join statements as one on one.id = announced.id or (
            (announced.keeps_session or announced.in_named_session)
            and one.session_id = announced.session_id and one.history_id < announced.history_id
            and one.state = 'waiting'
        )
        where announced.id = $1
    )
    and state = 'waiting' and (owner is null or lease_until < now())
    and (connector = any($4::text[]) or session_id = any($5::bigint[]))
    and not exists (
        select from sessions
        where sessions.id = orphan.session_id and closed_at is null
            and sessions.owner <> $2 and sessions.lease_until > now()
    )
returning {ASSIGNMENT}
"""

ORPHANS = f"""
update statements set owner = $1, fence = fence + 1, lease_until = now() + $2
where id in (
    select id from statements as orphan
    where state in ('waiting', 'running') and not is_script
        and (
            connector = any($3::text[]) or session_id = any($5::bigint[])
            or (sent_at is not null and ($6 or engine_handle is null)) or deadline_at < now() or {_HAS_NO_CONNECTOR}
        )
        and ($4 or lease_until is null or lease_until < now())
        and ($4 or not exists (
            select from sessions
            where sessions.id = orphan.session_id and closed_at is null
                and sessions.owner <> $1 and sessions.lease_until > now()
        ))
    order by history_id limit 200 for update skip locked
)
returning {ASSIGNMENT}
"""

# Users take turns: those with fewer running statements come first, and interactive statements precede scheduled ones.
# The statements of a session run one after another, in the process that has the session open. Only the first
# statements of each user are considered, so that a queue of ten thousand statements stays cheap. The first $7 of the
# $6 slots are assigned in turn, the rest to the first interactive statement of each user who has none running (ADR
# 66).
WAITING = f"""
with busy as (
    select connector, user_id, count(*) as running, count(*) filter (where priority = 0) as of_people from statements
    where state in ('waiting', 'running') and owner is not null and lease_until >= now() and not is_script
    group by connector, user_id
), room as (
    select connector, $4::bigint - coalesce((
        select sum(running) from busy where busy.connector = reachable.connector
    ), 0) as free
    from unnest($3::text[]) as reachable (connector)
), users as (
    select distinct connector, user_id from statements join room using (connector)
    where state = 'waiting' and sent_at is null and free > 0 and not is_script
), turns as (
    select mine.id, connector, free, mine.priority, mine.history_id,
        coalesce(running, 0) + row_number() over (
            partition by connector, user_id order by mine.priority, mine.history_id
        ) as turn,
        mine.priority = 0 and user_id not in (select user_id from busy where of_people > 0)
            and row_number() over (partition by user_id order by mine.priority, mine.history_id) = 1 as is_first
    from users join room using (connector) left join busy using (connector, user_id), lateral (
        select id, priority, history_id from statements as orphan
        where orphan.connector = users.connector and orphan.user_id = users.user_id
            and state = 'waiting' and sent_at is null and (owner is null or lease_until < now())
            and not exists (
                select from sessions
                where sessions.id = orphan.session_id and closed_at is null
                    and sessions.owner <> $1 and sessions.lease_until > now()
            )
            and not exists (
                select from statements as before
                where before.session_id = orphan.session_id and before.history_id < orphan.history_id
                    and before.state in ('waiting', 'running') and not before.is_script
            )
        order by priority, history_id limit greatest($5 - coalesce(running, 0), 0)
    ) as mine
), placed as (
    select id, is_first, priority, turn, history_id, free,
        row_number() over (
            partition by connector order by $7 > 0 or is_first desc, priority, turn, history_id
        ) as place
    from turns
), next as (
    select id, is_first, row_number() over (order by priority, turn, history_id) as number
    from placed where place <= free
)
update statements set owner = $1, fence = fence + 1, lease_until = now() + $2
where id in (
    select id from next where number <= $7 or is_first order by number limit $6
) and state = 'waiting' and (owner is null or lease_until < now())
returning {ASSIGNMENT}
"""
ANY_STATEMENT_WAITS = """
select exists (
    select from statements where state = 'waiting' and sent_at is null
        and (owner is null or lease_until < now()) and connector = any($1::text[])
)
"""
ANY_FIRST_STATEMENT_WAITS = """
select exists (
    select from statements where state = 'waiting' and sent_at is null and priority = 0
        and (owner is null or lease_until < now()) and connector = any($1::text[])
        and user_id not in (
            select user_id from statements
            where state in ('waiting', 'running') and priority = 0 and owner is not null and lease_until >= now()
                and not is_script
        )
)
"""
_QUEUE_LOCK = 0x71737175  # "qsqu"
# One worker at a time takes statements from the queue, so that slots are counted exactly. The timeout prevents a
# worker that hangs or loses its connection here from blocking the others. `WAITING` is a separate query, because it
# must see what the previous worker has committed.
LOCK_QUEUE = f"""
set local idle_in_transaction_session_timeout = '3s'; set local lock_timeout = '10s';
select pg_advisory_xact_lock({_QUEUE_LOCK})
"""

EXPIRE_ALL = """
update statements set lease_until = now()
where state in ('waiting', 'running') and lease_until > now() and not is_script
"""

# All statements of a script share the log of the script's operation.
_LOG_ID = "coalesce(operation_id, id) as log_id"
_LOGGED = """
logged as (
    insert into statement_logs as known (statement_id, start_line, lines)
    select log_id, coalesce({start}::integer, (
            select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs where statement_id = log_id
        )), {lines}::text[]
    from changed where cardinality({lines}::text[]) > 0
    on conflict (statement_id, start_line) do update set lines = excluded.lines
        where cardinality(known.lines) < cardinality(excluded.lines)
)
"""

RETRY = NamedQuery.of(f"""
with changed as (
    update statements set state = 'waiting', sent_at = null, owner = null, lease_until = null, progress = 0,
        was_retried = true
    where {FENCED} and state in ('waiting', 'running') and rows = 0 and engine_handle is null and not was_retried
        and cancel_requested_at is null
    returning {_LOG_ID}
), {_LOGGED.format(start="null", lines=":lines")}
select count(*) from changed
""")

SENT = NamedQuery.of(f"""
update statements set sent_at = coalesce(sent_at, now())
where {FENCED} and state = 'waiting' and cancel_requested_at is null
""")

RUNNING = NamedQuery.of(f"""
update statements set state = 'running', engine_handle = :mark where {FENCED} and state in ('waiting', 'running')
""")

RELEASE = NamedQuery.of(f"""
update statements set owner = null, lease_until = null where {FENCED} and state = 'waiting' and sent_at is null
""")

HAND_OVER = NamedQuery.of(f"""
update statements set owner = null, lease_until = null
where {FENCED} and state = 'running' and engine_handle is not null
""")

REPORT = NamedQuery.of(f"""
with changed as (
    update statements set progress = greatest(:progress, progress), jobs = :jobs,
        engine_handle = coalesce(:mark, engine_handle)
    where {FENCED} and state in ('waiting', 'running') returning {_LOG_ID}
), {_LOGGED.format(start=":start_line", lines=":lines")}
select count(*) from changed
""")

# Columns that are already stored are kept, because rewriting a large column list with each update is expensive.
_FINAL_COLUMNS = "case when :columns::jsonb is not null then coalesce(columns, :columns::jsonb) end"
# Large column descriptions and long messages count toward the statement's text size, and are removed with the text.
_COLUMNS_BYTES = (
    "case when octet_length(:columns::jsonb::text) > 16384 then octet_length(:columns::jsonb::text) else 0 end"
)
_MESSAGE_BYTES = "case when octet_length(:message::text) > 16384 then octet_length(:message::text) else 0 end"

SEGMENT = NamedQuery.of(f"""
with changed as (
    update statements set rows = :start_row::bigint + :rows::bigint, size_bytes = size_bytes + :size_bytes::bigint,
        columns = coalesce(columns, :columns::jsonb),
        engine_handle = coalesce(:mark, engine_handle)
    where {FENCED} and state = 'running' returning id
), stored as (
    insert into result_segments as known (statement_id, number, fence, start_row, rows, size_bytes)
    select id, :number::integer, :fence::bigint, :start_row::bigint, :rows::bigint, :size_bytes::bigint from changed
    on conflict (statement_id, number) do update
        set fence = excluded.fence, start_row = excluded.start_row, rows = excluded.rows,
            size_bytes = excluded.size_bytes
        where known.fence < excluded.fence
)
select count(*) from changed
""")

# A crashed runner may have left bytes that no segment row records. So if a statement ends without a result, its bytes
# are always marked for deletion.
FINISH = NamedQuery.of(f"""
with changed as (
    update statements set state = :state::text, ended_at = now(), error_code = :error_code, message = :message::text,
        error_line = :error_line, error_column = :error_column, error_sqlstate = :error_sqlstate,
        has_result_set = :has_result_set,
        columns = {_FINAL_COLUMNS}, text_bytes = text_bytes + {_COLUMNS_BYTES} + {_MESSAGE_BYTES},
        rows = :rows, size_bytes = :size_bytes, truncated_reason = :truncated_reason,
        modified_row_count = :modified_row_count, inline_result = :inline_result, engine_handle = null,
        sealed_token = null, token_expires_at = null,
        progress = case when :state::text in ('available', 'success') then 100 else progress end,
        expires_at = case when :state::text = 'available' then now() + :retention::interval end
    where {FENCED} and state in ('waiting', 'running') returning {_LOG_ID}, {END_COLUMNS}
), doomed as (
    insert into doomed_results (statement_id)
    select id from changed where :state::text not in ('available', 'success')
    on conflict do nothing
), {_LOGGED.format(start=":start_line", lines=":lines")}
select *, case when :notifies::boolean then {notice(ENDED, "id::text")} end from changed
""")


NOTIFY_END = f"select {notice(ENDED, '$1::text')}"
