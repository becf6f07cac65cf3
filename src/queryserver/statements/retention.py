"""Expires and deletes results, logs, texts, history entries and keys by age (Contract editor 13, platform 12.1, 12.2).

A result is doomed once the table `doomed_results` contains its statement id: its stored bytes must then be deleted.
The retention times are settings in `platform/settings/editor.py`, such as `EditorSettings.result_retention_h`.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import structlog

from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.files import StorageUnavailable
from queryserver.platform.database import Database, FactRepository, database_errors
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.ownership import OwnedTable
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.threads import Progress, background, every, no_progress
from queryserver.results.segments import ResultStore
from queryserver.results.stores import ResultDirectory, ResultListing
from queryserver.statements.grant_repository import HAS_RESULT
from queryserver.statements.repository import MAY_HAVE_BYTES, StatementRecords
from queryserver.statements.session_repository import SessionRecords

log = structlog.get_logger(__name__)

MANY_DOCUMENTS = 100_000
"""Number of history entries and saved queries above which a clean-up is recommended (Contract platform 12.2)."""
COUNT_DOCUMENTS = """
select (select count(*) from (select from statements where in_history limit $1) as entries)
    + (select count(*) from (select from documents limit $1) as saved)
"""
"""SQL: the number of history entries and saved queries, each counted up to $1."""
_CLEAN_UP_LOCK_KEY = 0x7173636C  # "qscl". Only one server at a time runs the clean-up
_BATCH = 500
_MAX_CONSECUTIVE_FAILURES = 3  # this many failures in a row are caused by the database, not by a single row
_DOOMED_EVERY_S = 2.0
# Writing a segment never takes this long, so older unrecorded files come from a process that has died.
_ORPHAN_AGE = timedelta(hours=1)

RESULT_READS = OwnedTable("result_reads")
_IS_READ = f"""exists (
    select from result_reads where result_reads.statement_id = {{id}} and {RESULT_READS.is_owned(me="{me}")}
)"""
"""SQL condition: another statement is reading the result as a table."""
_HAS_EXPIRED = f"state = 'available' and expires_at < now() and not {_IS_READ.format(id='statements.id', me='{me}')}"

EXPIRE = f"""
with over as (
    select id from statements where {_HAS_EXPIRED.format(me="$2")}
    order by expires_at limit $1 for update skip locked
), expired as (
    update statements set state = 'expired', message = 'Results have expired.', inline_result = null,
        reuse_key = null
    where id in (select id from over) returning id, {MAY_HAVE_BYTES} as may_have_bytes
), doomed as (
    insert into doomed_results (statement_id) select id from expired where may_have_bytes on conflict do nothing
)
select count(*) from expired
"""

# Only waiting and running statements have a token.
_FORGET_TOKENS = """
update statements set sealed_token = null, token_expires_at = null
where state in ('waiting', 'running') and token_expires_at <= now()
"""

# Ids of statements whose stored bytes this sweep must not delete. `expire` deletes the bytes of doomed statements.
_STATEMENTS_WITH_BYTES = f"""
select coalesce(array_agg(id), '{{}}') from (
    select id from statements where id = any($1::uuid[]) and state in ('waiting', 'running', 'available')
    union select statement_id from doomed_results where statement_id = any($1::uuid[])
    union select statement_id from result_reads
    where statement_id = any($1::uuid[]) and {RESULT_READS.is_owned(me="$2")}
) as kept
"""

# No read can start once its result is doomed.
_DOOMED = f"""
select statement_id from doomed_results where not {_IS_READ.format(id="doomed_results.statement_id", me="$2")}
order by since limit $1
"""
_UNREAD = f"""
select coalesce(array_agg(id), '{{}}') from unnest($1::uuid[]) as closed (id)
where not {_IS_READ.format(id="closed.id", me="$2")}
"""

KEPT_CHARACTERS = 4000
"""Number of characters kept when a long text is truncated. Enough to recognize a statement."""

_LONG_STATEMENTS = """
select id from statements
where text_bytes > 0 and ended_at < now() - $1::interval and state <> 'available'
order by ended_at limit $2
"""

_CUT_STATEMENTS = f"""
with long as ({_LONG_STATEMENTS} for update skip locked)
update statements set
    text_is_cut = octet_length(statement) > $3::integer,
    statement = case
        when octet_length(statement) > $3::integer then left(statement, {KEPT_CHARACTERS}) else statement
    end,
    columns = case when octet_length(columns::text) > $3::integer then null else columns end,
    message = case when octet_length(message) > $3::integer then left(message, {KEPT_CHARACTERS}) else message end,
    sealed_parameters = case when octet_length(sealed_parameters) <= $3::integer then sealed_parameters end,
    text_bytes = 0
where id in (select id from long)
"""

_LONG_SCRIPTS = """
select id from scripts
where text_bytes > 0 and not exists (
    select from statements
    where script_id = scripts.id and (ended_at is null or ended_at > now() - $1::interval)
)
order by id limit $2
"""

_CUT_SCRIPTS = f"""
with long as ({_LONG_SCRIPTS} for update skip locked)
update scripts set body = left(body, {KEPT_CHARACTERS}), text_is_cut = true, text_bytes = 0
where id in (select id from long)
"""

# Keeps the last statement of each schedule, and statements whose end is not yet recorded in their scheduled run.
_OLD_STATEMENTS = """
select id from statements
where recorded_at < now() - $1::interval and coalesce(ended_at, recorded_at) < now() - $1::interval
    and state not in ('waiting', 'running')
    and not exists (select from schedules where last_statement_id = statements.id)
    and not exists (select from schedule_runs where statement_id = statements.id and status = '')
order by recorded_at limit $2
"""

_DELETE_HISTORY = f"""
with old as ({_OLD_STATEMENTS} for update skip locked), doomed as (
    insert into doomed_results (statement_id)
    select id from statements where id in (select id from old) or operation_id in (select id from old)
    on conflict do nothing
), gone as (
    delete from statements where id in (select id from old) returning id
)
select count(*) from gone
"""

# The results of a script are closed with its operation once all of them are unused. The results of a failed script are
# closed individually.
_CLOSABLE = """
select id from statements as query where state = 'available' and last_used_at <= now() - $1::interval
    and not exists (
        select from statements as script
        where script.id = query.operation_id and script.state in ('waiting', 'running', 'available')
    )
    and not exists (
        select from statements as part
        where part.operation_id = query.id and part.state = 'available' and part.last_used_at > now() - $1::interval
    )
order by last_used_at
"""

_OUTDATED_ROWS: Mapping[str, str] = {
    "idempotency keys": "from idempotency_keys where created_at < now() - interval '24 hours'",
    "revoked tokens": "from revoked_tokens where expires_at < now()",
    "rotated tokens": "from rotated_tokens where expires_at < now()",
    "API tokens": "from api_tokens where least(expires_at, revoked_at) < now() - interval '30 days'",
    "login counters": "from login_failures where window_started_at < now() - interval '1 day'",
    "login networks": "from login_networks where last_login_at < now() - interval '30 days'",
    # Includes grants to disabled users, and grants of results that no longer exist.
    "result grants": f"""from result_grants where valid_until < now()
        or exists (select from users where users.id = user_id and not is_active)
        or not exists (select from statements where statements.id = statement_id and {HAS_RESULT})""",
    "closed sessions": "from sessions where closed_at < now() - interval '30 days'",
    # A process that is paused for less than a day continues its reads.
    "reads of results": f"""from result_reads where {RESULT_READS.claimable()}
        and not (lease_until = 'infinity' and exists (select from instances where instances.id = owner))""",
    "scripts": "from scripts where not exists (select from statements where script_id = scripts.id)",
}

_OLD_LOGS = """from statement_logs where statement_id in (
    select id from statements
    where ended_at < now() - $1::interval and exists (
        select from statement_logs as line where line.statement_id = statements.id
    ) limit $2
)"""


@dataclass(frozen=True, slots=True)
class CloseReport:
    """The result of close_queries and close_sessions."""

    closed: int
    already_closed: int
    in_use: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    """Failure reasons by id."""


@dataclass(slots=True, eq=False)
class RetentionSweep:
    """Expires results, and deletes old data in batches that are small enough not to delay calls.

    Every process expires results. One process at a time runs the clean-up.
    """

    database: Database
    statements: StatementRecords
    sessions: SessionRecords
    results: ResultStore
    listing: ResultListing
    editor: EditorSettings
    run_every: timedelta
    clean_up_lock: Callable[[], AbstractAsyncContextManager[bool]]
    """Tries to acquire the clean-up lock. Yields False if another process holds it."""
    metrics: Metrics = NO_METRICS
    owner: str = field(default="", init=False)
    """The id of this process. Results that it reads are not deleted, even if its heartbeat is late."""
    _added_steps: list[Callable[..., Awaitable[Mapping[str, int]]]] = field(default_factory=list, init=False)

    def add_clean_up_step(self, step: Callable[..., Awaitable[Mapping[str, int]]]) -> None:
        """Add a step to `clean_up`. The step is called with `dry_run` and returns counts by kind."""
        self._added_steps.append(step)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Expire results and clean up in the background while the context is open."""
        async with (
            background(every(_DOOMED_EVERY_S, self.expire), "expiry-sweep"),
            background(every(self.run_every.total_seconds(), self.clean_up_periodically), "clean-up"),
        ):
            yield

    async def expire(self, progress: Progress = no_progress) -> int:
        """Erase expired tokens, expire results, and delete the stored bytes of all doomed results.

        Return the number of results whose bytes were deleted.
        """
        await self.database.execute(_FORGET_TOKENS)
        await self._expire_results()
        deleted = 0
        while rows := await self.database.fetch(_DOOMED, _BATCH, self.owner):
            errors = await self._delete_bytes([row["statement_id"] for row in rows])
            # Logs one line per error code, because hundreds of results fail in each round while a store is
            # unavailable.
            examples = {error.code: statement_id for statement_id, error in errors.items()}
            for code, count in Counter(error.code for error in errors.values()).items():
                log.warning("results could not be deleted", count=count, code=code, operation_id=str(examples[code]))
            deleted += len(rows) - len(errors)
            progress(0.5, f"{deleted} results deleted.")
            if errors:
                break
        return deleted

    async def clean_results(self, progress: Progress = no_progress) -> Mapping[str, int]:
        """Delete expired results, and files left by interrupted result writes. Return counts by kind."""
        deleted = await self.expire(progress)
        swept = await self._sweep_store(dry_run=False)
        return {"results": deleted, **{kind.replace(" ", "_"): count for kind, count in swept.items()}}

    async def clean_up(
        self, *, history: timedelta | None = None, dry_run: bool = False, progress: Progress = no_progress
    ) -> Mapping[str, int]:
        """Delete data that is older than its retention time. Return counts by kind.

        `history` overrides the retention time of history entries. If `dry_run` is set, only count.
        """
        editor, steps = self.editor, _StepProgress(progress, total=5 + len(self._added_steps))
        if dry_run:
            count = f"select count(*) from statements where {_HAS_EXPIRED.format(me='$1')}"
            expired = await self.database.value(count, self.owner)
        else:
            expired = await self._expire_results()
        counts = {"expired results": expired, **await self._delete_outdated_rows(dry_run=dry_run)}
        steps.end_step(f"expired results: {expired}")
        for kind, change, age in (
            ("log lines", self._delete_logs, editor.log_retention),
            ("long statement texts", self._cut_texts, editor.statement_text_retention),
            ("history entries", self._delete_history, editor.history_retention if history is None else history),
        ):
            counts[kind] = 0
            while changed := await change(age, dry_run=dry_run):
                counts[kind] += changed
                steps.report(f"{kind}: {counts[kind]}")
                if dry_run:
                    break
            steps.end_step(f"{kind}: {counts[kind]}")
        swept = await self._sweep_store(dry_run=dry_run)
        counts.update(swept)
        steps.end_step(", ".join(f"{kind}: {count}" for kind, count in swept.items()))
        for step in self._added_steps:
            step_counts = await step(dry_run=dry_run)
            counts.update(step_counts)
            steps.end_step(", ".join(f"{kind}: {count}" for kind, count in step_counts.items()))
        if not dry_run:
            await self.expire()
        return counts

    async def clean_up_periodically(self) -> None:
        """Run the periodic clean-up unless another process is running it. Warn if too many documents remain."""
        async with self.clean_up_lock() as is_acquired:
            if not is_acquired:
                return
            await self.clean_up()
            if await self.database.value(COUNT_DOCUMENTS, MANY_DOCUMENTS + 1) > MANY_DOCUMENTS:
                log.warning(
                    "many history entries and saved queries; run `queryserver cleanup`", more_than=MANY_DOCUMENTS
                )

    async def close_queries(self, unused_for: timedelta, *, progress: Progress = no_progress) -> CloseReport:
        """Close statements whose results have been unused for this long, and delete the results."""
        closed: list[UUID] = []
        already, skipped, failures = 0, 0, _FailureCollector()
        rows = await self.database.fetch(_CLOSABLE, unused_for)
        for number, row in enumerate(rows):
            progress(number / len(rows), f"{len(closed)} queries closed.")
            with failures.collect(row["id"]):
                if await self.statements.close_result(row["id"]):
                    closed.append(row["id"])
                else:
                    already += 1
        for start in range(0, len(closed), _BATCH):
            unread = await self.database.value(_UNREAD, closed[start : start + _BATCH], self.owner)
            errors = await self._delete_bytes(unread)
            skipped += len(errors)
            failures.texts |= {str(statement_id): error.message for statement_id, error in errors.items()}
        await self.expire()
        return CloseReport(len(closed) - skipped, already, failed=failures.texts)

    async def close_sessions(
        self, connectors: list[str] | None, unused_for: timedelta, *, progress: Progress = no_progress
    ) -> CloseReport:
        """Close the records of sessions unused for this long. Their owners drop the sessions at the next heartbeat."""
        closed = already = in_use = 0
        failures = _FailureCollector()
        sessions = await self.sessions.open_sessions(connectors=connectors, unused_since=unused_for)
        for number, session in enumerate(sessions):
            progress(number / len(sessions), f"{closed} sessions closed.")
            with failures.collect(session.id):
                if await self.sessions.close_unused(session.id, unused_since=unused_for):
                    closed += 1
                elif await self.sessions.read(session.id) is None:
                    already += 1
                else:
                    in_use += 1
        return CloseReport(closed, already, in_use, failures.texts)

    async def _expire_results(self) -> int:
        """Mark `available` statements past `expires_at` as `expired`, and doom their bytes. Return their number."""
        total, expired = 0, _BATCH
        while expired == _BATCH:
            expired = await self.database.value(EXPIRE, _BATCH, self.owner)
            self.metrics.results_expired.inc(expired)
            total += expired
        return total

    async def _delete_bytes(self, doomed: Sequence[UUID]) -> Mapping[UUID, QueryServerError]:
        """Delete the stored bytes of these results. Continue after an error, and return the errors by id."""
        errors: dict[UUID, QueryServerError] = {}
        for statement_id in doomed:
            try:
                await self.results.delete(statement_id)
            except QueryServerError as error:  # denied access is not a StorageError
                errors[statement_id] = error
        deleted = [statement_id for statement_id in doomed if statement_id not in errors]
        async with self.database.transaction() as connection:
            # Deleted last, because the segment rows name the bytes to delete.
            for table in ("result_segments", "doomed_results"):
                await connection.execute(f"delete from {table} where statement_id = any($1::uuid[])", deleted)
        return errors

    async def _sweep_store(self, *, dry_run: bool) -> Mapping[str, int]:
        """Delete stored rows of statements without a result, and files left by dead processes. Return counts by kind.

        A store error ends only this sweep. Orphaned results are counted even if they cannot be deleted.
        """
        orphaned = interrupted = 0
        now = await self.database.value("select now()")
        owner = await FactRepository(self.database).keep("result_store_owner", uuid4().hex)
        try:
            if not await self.listing.belongs_to(owner, claims=not dry_run):
                log.error("result store belongs to another database; not swept")
                return {"orphaned results": 0, "interrupted writes": 0}
            async with aclosing(self.listing.statements()) as batches:
                async for batch in batches:
                    ids = [stored.id for stored in batch]
                    known = await self.database.value(_STATEMENTS_WITH_BYTES, ids, self.owner)
                    for stored in batch:
                        if stored.id in known or not await self._is_old(stored, now):
                            continue
                        orphaned += 1
                        if not dry_run:
                            await self._delete_orphan(stored)
            interrupted = await self.listing.remove_orphans(_ORPHAN_AGE, now, dry_run=dry_run)
        except DatabaseUnavailable:
            raise
        except QueryServerError as error:
            log.warning("result store could not be swept", code=error.code)
        return {"orphaned results": orphaned, "interrupted writes": interrupted}

    async def _delete_orphan(self, stored: ResultDirectory) -> None:
        try:
            await self.results.delete(stored.id)
        except StorageUnavailable:
            raise
        except QueryServerError as error:
            log.warning("orphaned result could not be deleted", operation_id=str(stored.id), code=error.code)

    async def _is_old(self, stored: ResultDirectory, now: datetime) -> bool:
        """Return whether the stored result is too old to be still written by a runner that has lost its claim."""
        written = await self.listing.last_written(stored)
        return written is not None and now - written > _ORPHAN_AGE

    async def _delete_logs(self, older_than: timedelta, *, dry_run: bool) -> int:
        if dry_run:
            return await self.database.value(f"select count(*) {_OLD_LOGS}", older_than, 2**31)
        return await self.database.execute(f"delete {_OLD_LOGS}", older_than, _BATCH)

    async def _cut_texts(self, older_than: timedelta, *, dry_run: bool) -> int:
        """Truncate long texts of statements and scripts whose results can no longer be read."""
        if dry_run:
            statements = f"select count(*) from ({_LONG_STATEMENTS}) as long"
            scripts = f"select count(*) from ({_LONG_SCRIPTS}) as long"
            return await self.database.value(f"select ({statements}) + ({scripts})", older_than, 2**31)
        cut = await self.database.execute(_CUT_STATEMENTS, older_than, _BATCH, self.editor.statement_text_kept_bytes)
        return cut + await self.database.execute(_CUT_SCRIPTS, older_than, _BATCH)

    async def _delete_history(self, older_than: timedelta, *, dry_run: bool) -> int:
        if dry_run:
            return await self.database.value(f"select count(*) from ({_OLD_STATEMENTS}) as old", older_than, 2**31)
        return await self.database.value(_DELETE_HISTORY, older_than, _BATCH)

    async def _delete_outdated_rows(self, *, dry_run: bool) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for kind, condition in _OUTDATED_ROWS.items():
            if dry_run:
                counts[kind] = await self.database.value(f"select count(*) {condition}")
                continue
            try:
                counts[kind] = await self.database.execute(f"delete {condition}")
            except asyncpg.ForeignKeyViolationError:
                # A script was resubmitted at the same time. Unused scripts are deleted next time.
                counts[kind] = 0
        return counts


@asynccontextmanager
async def clean_up_lock(dsn: str) -> AsyncGenerator[bool]:
    """Try to acquire the clean-up lock. Yields False if another process holds it. Raises DatabaseUnavailable.

    The lock is held on a separate connection, because a small pool's only connection is needed inside the block.
    """
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
    try:
        with database_errors():
            is_acquired = await connection.fetchval("select pg_try_advisory_lock($1)", _CLEAN_UP_LOCK_KEY, timeout=10)
        yield is_acquired
        with suppress(DatabaseUnavailable), database_errors():
            # The lock is released explicitly, because PostgreSQL notices a closed connection with a delay.
            await connection.execute("select pg_advisory_unlock_all()", timeout=10)
    finally:
        connection.terminate()


class _StepProgress:
    """Reports the progress of several equally weighted steps as overall progress."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def report(self, text: str) -> None:
        """Report progress within a step."""
        self._progress(self._done / self._total, text)

    def end_step(self, text: str) -> None:
        self._done += 1
        self.report(text)


class _FailureCollector:
    """Collects failure reasons by id, so that one locked row does not stop the work on the other rows."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._in_a_row = 0

    @contextmanager
    def collect(self, item_id: object) -> Generator[None]:
        """Record a DatabaseUnavailable raised in the block. Raise it at the third failure in a row."""
        try:
            yield
        except DatabaseUnavailable as error:
            self.texts[str(item_id)] = error.message
            self._in_a_row += 1
            if self._in_a_row == _MAX_CONSECUTIVE_FAILURES:
                raise
        else:
            self._in_a_row = 0
