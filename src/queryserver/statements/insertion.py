"""Inserts new statements, within the limits of their users."""

import hashlib
from dataclasses import replace
from datetime import timedelta

from queryserver import errors
from queryserver.platform.database import COMMIT_EARLY, Connection, NamedQuery
from queryserver.statements import model
from queryserver.statements.rows import FIRST_LINE, WITHOUT_TEXT, record_from_row

# Short texts do not count, so ordinary statements never exhaust a user's quota.
_COUNTED_BYTES = "(case when octet_length({value}) > :uncounted_bytes::integer then octet_length({value}) else 0 end)"
_STATEMENT_BYTES = " + ".join(
    _COUNTED_BYTES.format(value=value) for value in (":statement::text", ":sealed_parameters::bytea")
)
_SCRIPT_BYTES = _COUNTED_BYTES.format(value=":script::text")
_COUNTED_USER_BYTES = """(
    (select coalesce(sum(text_bytes), 0) from statements where user_id = {user} and text_bytes > 0)
    + (select coalesce(sum(text_bytes), 0) from scripts where user_id = {user} and text_bytes > 0)
)"""

# Fields of `NewStatement` and its handle that have the same name and type as a column.
_INSERTED_FIELDS = (
    "id", "user_id", "connector", "dialect", "script", "script_id", "database", "row_limit", "in_history",
    "in_named_session", "keeps_session", "needs_session", "parent_uuid", "has_result_set", "owner", "priority",
    "notify", "import_plan", "source_operation", "destination", "sealed_parameters", "parameter_count",
    "operation_id", "is_script", "runs_all", "reuse_key",
    "read_only", "traceparent", "max_estimated_bytes",
)  # fmt: skip
_INSERTED_HANDLE_FIELDS = (
    "statement", "statement_index", "statements_count", "statement_hash", "guid", "secret", "session_id", "session_guid"
)  # fmt: skip
_INSERTED_COLUMNS = {
    **{name: f":{name}" for name in (*_INSERTED_FIELDS, *_INSERTED_HANDLE_FIELDS) if name != "script"},
    **{name: f":{name}" for name in ("position", "settings", "limit_source", "timeout_s", "api_token", "sealed_token")},
    **{name: f":{name}" for name in ("reused_from", "reused_sent_at")},
    "state": "'waiting'",
    "sent_at": "case when :sent_ahead::boolean then now() end",
    "script_id": "coalesce(:script_id, (select id from script))",
    "deadline_at": "now() + make_interval(secs => :timeout_s::integer)",
    "fence": "case when :owner::text is null then 0 else 1 end",
    # No process may claim a script. Only its statements run.
    "lease_until": """case when :owner::text is null then null when :is_script then now() + interval '100 years'
        else 'infinity' end""",
    "token_expires_at": "to_timestamp(:token_expires_at)",
    "text_bytes": _STATEMENT_BYTES,
}
"""The columns of a new row and the SQL expression of each."""

# Counts and inserts in a single query: a statement beyond a limit stores nothing, and one round trip is enough.
# Scripts are deduplicated per user. Warnings are stored with the first log line. The statements of a script share the
# log of the script's operation.
_INSERT = NamedQuery.of(f"""
with room as (
    select 1
    where (
            select count(*) from statements
            where user_id = :user_id and state in ('waiting', 'running') and not is_script
        ) < :max_statements
        and (
            select coalesce(sum(size_bytes), 0) from statements
            where user_id = :user_id and state = 'available' and size_bytes > 32768
        ) < :max_result_bytes
        and {_COUNTED_USER_BYTES.format(user=":user_id")} + {_STATEMENT_BYTES} + case
            when :script::text is null or exists (
                select from scripts where user_id = :user_id and digest = :script_digest::bytea and not text_is_cut
            ) then 0 else {_SCRIPT_BYTES}
        end <= :max_text_bytes::bigint
), script as (
    insert into scripts as known (user_id, digest, body, text_bytes)
    select :user_id, :script_digest::bytea, :script::text, {_SCRIPT_BYTES} from room where :script::text is not null
    on conflict (user_id, digest) where not text_is_cut do update set text_bytes = known.text_bytes
    returning id
), recorded as (
    insert into statements ({", ".join(_INSERTED_COLUMNS)})
    select {", ".join(_INSERTED_COLUMNS.values())} from room
    returning {WITHOUT_TEXT}, '' as statement
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select :id, 0, array[{FIRST_LINE}] || :log_lines::text[]
    from recorded where :operation_id::uuid is null and cardinality(:log_lines::text[]) > 0
)
select *, case when :commits_early::boolean then {COMMIT_EARLY} end from recorded
""")


async def insert(connection: Connection, new: model.NewStatement) -> model.StatementRecord:
    """Store a statement. Raises TooManyRequests if the user has reached a limit, in which case nothing is stored."""
    row = await connection.fetchrow(_INSERT.sql, *_INSERT.arguments(_insert_arguments(new)))
    if row is None:
        raise await _limit_reached(connection, new)
    return replace(record_from_row(row), handle=new.handle)


def _insert_arguments(new: model.NewStatement) -> dict[str, object]:
    handle, limits = new.handle, new.limits
    return {
        **{name: getattr(new, name) for name in _INSERTED_FIELDS},
        **{name: getattr(handle, name) for name in _INSERTED_HANDLE_FIELDS},
        "position": list(handle.position),
        "settings": {name: str(value) for name, value in new.settings.items()},
        "limit_source": new.limit_source.value,
        "timeout_s": int(new.timeout.total_seconds()),
        "sent_ahead": new.sent_ahead,
        "commits_early": new.commits_early,
        "api_token": None if new.api_token is None else new.api_token.stored,
        "sealed_token": new.token.content if new.token else None,
        "token_expires_at": new.token.expires_at if new.token else None,
        "script_digest": None if new.script is None else hashlib.sha256(new.script.encode()).digest(),
        "log_lines": list(new.log_lines),
        "reused_from": new.reused and new.reused.statement_id,
        "reused_sent_at": new.reused and new.reused.sent_at,
        "max_statements": limits.max_statements_per_user,
        "max_result_bytes": limits.spool_max_bytes_per_user,
        "max_text_bytes": limits.statement_text_max_bytes_per_user,
        "uncounted_bytes": limits.statement_text_kept_bytes,
    }


async def _limit_reached(connection: Connection, new: model.NewStatement) -> errors.TooManyRequests:
    limits = new.limits
    active = await connection.fetchval(
        "select count(*) from statements where user_id = $1 and state in ('waiting', 'running') and not is_script",
        new.user_id,
    )
    if active >= limits.max_statements_per_user:
        return errors.too_many_statements(
            f"{active} of your statements are waiting or running; the limit is {limits.max_statements_per_user}"
            " (`editor.max_statements_per_user`). Wait until one of them ends, or cancel one."
        )
    stored = await connection.fetchval(f"select {_COUNTED_USER_BYTES.format(user='$1')}", new.user_id)
    sizes = [len(text.encode()) for text in (new.handle.statement, new.script) if text is not None]
    sizes.append(len(new.sealed_parameters or b""))
    counted = sum(size for size in sizes if size > limits.statement_text_kept_bytes)
    if stored + counted > limits.statement_text_max_bytes_per_user:
        return errors.quota_exceeded(
            f"The texts of your statements use {stored} bytes;"
            f" `editor.statement_text_max_bytes_per_user` is {limits.statement_text_max_bytes_per_user}. Texts above"
            f" {limits.statement_text_kept_bytes} bytes count until they are truncated, some time after their"
            " statement has ended.",
            retry_after=timedelta(hours=1),  # the default of `retention.run_every_s`
        )
    return errors.quota_exceeded(
        f"Your stored results have reached your quota of {limits.spool_max_bytes_per_user} bytes"
        " (`editor.spool_max_bytes_per_user`). Close some of them.",
        retry_after=timedelta(seconds=60),
    )
