"""Inserts a new statement's row within the limits of its user."""

import hashlib
from dataclasses import replace
from datetime import timedelta

from queryserver import errors
from queryserver.platform.database import Connection, NamedQuery
from queryserver.statements import model
from queryserver.statements.rows import LOG_MOMENT, WITHOUT_TEXT, record_of

_FOREVER = timedelta(days=36_500)

_BYTES_ABOVE = "(case when octet_length({value}) > :uncounted_bytes::integer then octet_length({value}) else 0 end)"
"""The text size that counts towards the user's quota; short texts are free, so usual statements never exhaust it."""
_STATEMENT_BYTES = " + ".join(
    _BYTES_ABOVE.format(value=value) for value in (":statement::text", ":sealed_parameters::bytea")
)
_SCRIPT_BYTES = _BYTES_ABOVE.format(value=":script::text")
_TEXT_BYTES = """(
    (select coalesce(sum(text_bytes), 0) from statements where user_id = {user} and text_bytes > 0)
    + (select coalesce(sum(text_bytes), 0) from scripts where user_id = {user} and text_bytes > 0)
)"""

# Fields with the same name and type as a column.
_FIELDS_OF_STATEMENT = (
    "id", "user_id", "connector", "dialect", "script", "script_id", "database", "row_limit", "in_history",
    "in_named_session", "keeps_session", "needs_session", "parent_uuid", "has_result_set", "owner", "priority",
    "notify", "import_plan", "sealed_parameters", "parameter_count", "operation_id", "is_script", "runs_all",
)  # fmt: skip
_FIELDS_OF_HANDLE = (
    "statement", "statement_index", "statements_count", "statement_hash", "guid", "secret", "session_id", "session_guid"
)  # fmt: skip
_COLUMNS = {
    **{name: f":{name}" for name in (*_FIELDS_OF_STATEMENT, *_FIELDS_OF_HANDLE) if name != "script"},
    **{name: f":{name}" for name in ("position", "settings", "limit_source", "timeout_s", "api_token", "sealed_token")},
    "state": "'waiting'",
    "script_id": "coalesce(:script_id, (select id from script))",
    "deadline_at": "now() + make_interval(secs => :timeout_s::integer)",
    "fence": "case when :owner::text is null then 0 else 1 end",
    "lease_until": "case when :owner::text is not null then now() + :lease::interval end",
    "token_expires_at": "to_timestamp(:token_expires_at)",
    "text_bytes": _STATEMENT_BYTES,
}
"""The columns of the row, each with its expression."""

# Counts and inserts in a single query, so that a call beyond a limit stores nothing, in one round trip. Scripts are
# deduplicated per user. The first log lines are stored with the record; the statements of a script share the log of
# their operation.
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
        and {_TEXT_BYTES.format(user=":user_id")} + {_STATEMENT_BYTES} + case
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
    insert into statements ({", ".join(_COLUMNS)})
    select {", ".join(_COLUMNS.values())} from room
    returning {WITHOUT_TEXT}, '' as statement
), logged as (
    insert into statement_logs (statement_id, start_line, lines)
    select :id, 0, array[{LOG_MOMENT.format(moment="recorded_at")} || :first_line::text] || :log_lines::text[]
    from recorded where :operation_id::uuid is null
)
select * from recorded
""")


async def insert(connection: Connection, new: model.NewStatement) -> model.StatementRecord:
    """Store a statement. Raises TooManyRequests if the user is at a limit; then nothing is stored."""
    row = await connection.fetchrow(_INSERT.sql, *_INSERT.arguments(_values(new)))
    if row is None:
        raise await _limit_reached(connection, new)
    return replace(record_of(row), handle=new.handle)


def _values(new: model.NewStatement) -> dict[str, object]:
    handle, limits = new.handle, new.limits
    return {
        **{name: getattr(new, name) for name in _FIELDS_OF_STATEMENT},
        **{name: getattr(handle, name) for name in _FIELDS_OF_HANDLE},
        "position": list(handle.position),
        "settings": {name: str(value) for name, value in new.settings.items()},
        "limit_source": new.limit_source.value,
        "timeout_s": int(new.timeout.total_seconds()),
        "lease": _FOREVER if new.is_script else timedelta(seconds=limits.lease_timeout_s),
        "api_token": None if new.api_token is None else new.api_token.stored,
        "sealed_token": new.token.content if new.token else None,
        "token_expires_at": new.token.expires_at if new.token else None,
        "script_digest": None if new.script is None else hashlib.sha256(new.script.encode()).digest(),
        "first_line": f" Submitted to {new.connector}; waiting for a free place.",
        "log_lines": list(new.log_lines),
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
