"""The row of a new statement, written within the limits of its user."""

import hashlib
from dataclasses import replace
from datetime import timedelta

from queryserver import errors
from queryserver.platform.database import Connection
from queryserver.statements import model
from queryserver.statements.rows import LOG_MOMENT, WITHOUT_TEXT, record_of

_FOR_EVER = timedelta(days=36_500)

# What a text of $32 bytes counts: short ones nothing, so that usual statements never fill the quota.
_COUNTED = "(case when octet_length({text}) > $32::integer then octet_length({text}) else 0 end)"
_STATEMENT_BYTES = f"""({_COUNTED.format(text="$7::text")} + case
    when octet_length($39::bytea) > $32::integer then octet_length($39::bytea) else 0
end)"""
_SCRIPT_BYTES = _COUNTED.format(text="$4::text")
_TEXT_BYTES = """(
    (select coalesce(sum(text_bytes), 0) from statements where user_id = {user} and text_bytes > 0)
    + (select coalesce(sum(text_bytes), 0) from scripts where user_id = {user} and text_bytes > 0)
)"""

# Counts and inserts in one statement: a call above a limit stores nothing, and one round trip is enough.
# A script that its user sends again is stored once. The first log lines are stored together with the record;
# the statements of a script write into the log of their operation.
_INSERT = f"""
with room as (
    select 1
    where (
            select count(*) from statements where user_id = $2 and state in ('waiting', 'running') and not is_script
        ) < $27
        and (
            select coalesce(sum(size_bytes), 0) from statements
            where user_id = $2 and state = 'available' and size_bytes > 32768
        ) < $28
        and {_TEXT_BYTES.format(user="$2")} + {_STATEMENT_BYTES} + case
            when $4::text is null or exists (
                select from scripts where user_id = $2 and digest = $34::bytea and not text_is_cut
            ) then 0 else {_SCRIPT_BYTES}
        end <= $33::bigint
), script as (
    insert into scripts as known (user_id, digest, body, text_bytes)
    select $2, $34::bytea, $4::text, {_SCRIPT_BYTES} from room where $4::text is not null
    on conflict (user_id, digest) where not text_is_cut do update set text_bytes = known.text_bytes
    returning id
), recorded as (
    insert into statements (
        id, user_id, connector, dialect, state, statement, script_id, statement_index, statements_count, position,
        statement_hash, guid, secret, session_id, session_guid, in_named_session, keeps_session, database, settings,
        row_limit, timeout_s, in_history, parent_uuid, deadline_at, has_result_set, owner, fence, lease_until,
        import_plan, sealed_token, token_expires_at, text_bytes, limit_source, priority, notify,
        sealed_parameters, parameter_count, operation_id, is_script, runs_all, needs_session,
        api_token
    )
    select $1, $2, $3, $6, 'waiting', $7, coalesce($5, (select id from script)), $8, $9, $10,
        $11, $12, $13, $14, $15, $16, $17, $18, $19,
        $20, $21::integer, $22, $23, now() + make_interval(secs => $21::integer), $24, $25::text,
        case when $25::text is null then 0 else 1 end,
        case when $25::text is null then null else now() + $26::interval end,
        $29, $30, to_timestamp($31), {_STATEMENT_BYTES}, $35, $37, $38, $39::bytea, $40, $42, $43, $44, $45,
        $46
    from room
    returning {WITHOUT_TEXT}, '' as statement
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select $1, 0, array[{LOG_MOMENT.format(moment="recorded_at")} || $36::text] || $41::text[]
    from recorded where $42::uuid is null
)
select * from recorded
"""


async def insert(connection: Connection, new: model.NewStatement) -> model.StatementRecord:
    """Store it. Raises TooManyRequests above a limit of its user; then nothing is stored."""
    row = await connection.fetchrow(_INSERT, *_arguments(new))
    if row is None:
        raise await _limit_reached(connection, new)
    return replace(record_of(row), handle=new.handle)


def _arguments(new: model.NewStatement) -> tuple[object, ...]:
    handle, limits = new.handle, new.limits
    return (
        new.id,
        new.user_id,
        new.connector,
        new.script,
        new.script_id,
        new.dialect,
        handle.statement,
        handle.statement_index,
        handle.statements_count,
        list(handle.position),
        handle.statement_hash,
        handle.guid,
        handle.secret,
        handle.session_id,
        handle.session_guid,
        new.in_named_session,
        new.keeps_session,
        new.database,
        {name: str(value) for name, value in new.settings.items()},
        new.row_limit,
        int(new.timeout.total_seconds()),
        new.in_history,
        new.parent_uuid,
        new.has_result_set,
        new.owner,
        _FOR_EVER if new.is_script else timedelta(seconds=limits.lease_timeout_s),
        limits.max_statements_per_user,
        limits.spool_max_bytes_per_user,
        new.import_plan,
        new.token.content if new.token else None,
        new.token.expires_at if new.token else None,
        limits.statement_text_kept_bytes,
        limits.statement_text_max_bytes_per_user,
        None if new.script is None else hashlib.sha256(new.script.encode()).digest(),
        new.limit_source.value,
        f" Submitted to {new.connector}; waiting for a free place.",
        new.priority,
        new.notify,
        new.sealed_parameters,
        new.parameter_count,
        list(new.log_lines),
        new.operation_id,
        new.is_script,
        new.runs_all,
        new.needs_session,
        None if new.api_token is None else new.api_token.stored,
    )


async def _limit_reached(connection: Connection, new: model.NewStatement) -> errors.TooManyRequests:
    limits = new.limits
    active = await connection.fetchval(
        "select count(*) from statements where user_id = $1 and state in ('waiting', 'running') and not is_script",
        new.user_id,
    )
    if active >= limits.max_statements_per_user:
        most = limits.max_statements_per_user
        return errors.too_many_statements(f"{active} of your statements are waiting or running; {most} may.")
    stored = await connection.fetchval(f"select {_TEXT_BYTES.format(user='$1')}", new.user_id)
    sizes = [len(text.encode()) for text in (new.handle.statement, new.script) if text is not None]
    sizes.append(len(new.sealed_parameters or b""))
    counted = sum(size for size in sizes if size > limits.statement_text_kept_bytes)
    if stored + counted > limits.statement_text_max_bytes_per_user:
        return errors.quota_exceeded(
            f"The texts of your statements take {stored} bytes, and"
            f" `editor.statement_text_max_bytes_per_user` is {limits.statement_text_max_bytes_per_user}. Texts above"
            f" {limits.statement_text_kept_bytes} bytes count until they are cut, some time after their statement has"
            " ended.",
            retry_after=timedelta(hours=1),  # the default of `retention.run_every_s`
        )
    return errors.quota_exceeded(
        "Your stored results fill your share of the result store. Close some of them.",
        retry_after=timedelta(seconds=60),
    )
