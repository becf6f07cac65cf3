"""Statements, their results and sessions: tables `editor`, `notebook`, `metastore`, `limits`, `retention`."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from queryserver.settings.connectors import InterpreterSettings
from queryserver.settings.section import GIB, KIB, MIB, Count, Flag, Names, Positive, Section, Text

# A hundred years: beyond it sums with dates overflow.
_MAX_DAYS = 36_500

Days = Annotated[Positive, Field(le=_MAX_DAYS)]
Hours = Annotated[Positive, Field(le=24 * _MAX_DAYS)]
Seconds = Annotated[Positive, Field(le=86_400 * 365)]


class EditorSettings(Section):
    """Statements and their results."""

    default_limit: Count = 5000
    """Most rows of a result when the call gives no limit; 0: `result_max_rows`."""
    result_max_rows: Positive = 1_000_000
    """Highest limit that a call may give."""
    result_max_bytes: Positive = GIB
    """Most bytes of one result."""
    batch_max_bytes: Annotated[Positive, Field(ge=64 * KIB)] = 16 * MIB
    """Size of the JSON of one fetched batch."""
    rendering_max_bytes: Annotated[Positive, Field(ge=32 * MIB)] = 192 * MIB
    """Memory for the making of batches and samples in one process; half of it for one user. Further calls wait."""
    cell_max_bytes: Annotated[Positive, Field(ge=64 * KIB)] = 16 * MIB
    """Largest value of a result; a larger one ends its statement with `cell_too_large`."""
    result_retention_h: Hours = 24
    """How long a result is kept, from the end of its statement."""
    log_retention_days: Days = 7
    """How long logs of statements are kept."""
    history_retention_days: Days = 365
    """How long records of statements are kept."""
    log_max_bytes: Positive = MIB
    """Log kept of one statement."""
    statement_max_bytes: Positive = 10 * MIB
    """Longest text of a statement or script."""
    statement_text_kept_bytes: Annotated[Positive, Field(ge=16 * KIB)] = 16 * KIB
    """Texts of statements and scripts up to this size are kept as long as their record. Of longer ones the first 4,000
    characters and a hash are, and the whole for `statement_text_retention_h`."""
    statement_text_retention_h: Hours = 24
    """How long longer texts are kept whole, from the end of their statement and of its result."""
    statement_text_max_bytes_per_user: Positive = 256 * MIB
    """Longer texts of one user that are kept whole."""
    request_body_max_bytes: Positive = 16 * MIB
    """Largest body of an editor call."""
    statement_timeout_s: Seconds = 3600
    """How long a statement may run when the call says nothing; impala: 600."""
    metadata_timeout_s: Seconds = 30
    """Time for lists of databases, tables, columns and functions, and for explain."""
    sample_timeout_s: Seconds = 10
    """Time for sample rows."""
    metadata_cache_s: Count = 60
    """How long metadata are kept."""
    metadata_max_names: Positive = 50_000
    """Most names in one answer."""
    cancel_wait_s: Seconds = 10
    """How long a cancellation waits for the engine."""
    lease_timeout_s: Annotated[Seconds, Field(ge=3)] = 30
    """How long a silent server keeps its statements before another takes them over."""
    session_idle_s: Seconds = 900
    """How long an unused engine session stays open."""
    shared_session: Flag = False
    """Whether calls without a session share one per user."""
    sample_views: Flag = True
    """Whether sample rows of views are read."""
    escape_default: Flag = False
    """Whether cells are HTML-escaped when the call says nothing."""
    max_statements_per_user: Positive = 50
    """Statements of one user that wait or run."""
    max_sessions_per_user: Positive = 50
    """Open sessions of one user."""
    max_sessions_per_connector: Annotated[Positive, Field(ge=2)] = 128
    """Sessions of one connector that one process keeps open for `create_session`; at most half of them of one user, and
    of the last quarter no more than an equal share."""
    max_streams_per_user: Positive = 20
    """Event streams, waits and downloads of one user."""
    stream_max_s: Seconds = 3600
    """Longest event stream."""
    spool_max_bytes_per_user: Positive = 20 * GIB
    """Stored results of one user."""

    @property
    def result_retention(self) -> timedelta:
        return timedelta(hours=self.result_retention_h)

    @property
    def statement_text_retention(self) -> timedelta:
        return timedelta(hours=self.statement_text_retention_h)

    @property
    def log_retention(self) -> timedelta:
        return timedelta(days=self.log_retention_days)

    @property
    def history_retention(self) -> timedelta:
        return timedelta(days=self.history_retention_days)

    @property
    def cancel_wait(self) -> timedelta:
        return timedelta(seconds=self.cancel_wait_s)

    @property
    def lease_timeout(self) -> timedelta:
        return timedelta(seconds=self.lease_timeout_s)


class NotebookSettings(Section):
    """What clients are told about the editor, and the data sources."""

    default_limit: Count = 5000
    """Another name of `editor.default_limit`."""
    default_interpreter: Text = ""
    """Key, id or display name of the data source that is meant when a call names none; empty: the first."""
    interpreters_shown_on_wheel: Names = ()
    """Keys of the data sources that clients show first."""
    interpreters: dict[str, InterpreterSettings] = Field(default_factory=dict[str, InterpreterSettings])


class MetastoreSettings(Section):
    """Metadata as older settings files have them."""

    allow_sample_data_from_views: Flag = True
    """Another name of `editor.sample_views`."""


class LimitsSettings(Section):
    """Limits of every call that has none of its own."""

    max_body_bytes: Positive = 10 * MIB
    """Largest body of a call."""
    max_json_depth: Annotated[Positive, Field(le=1000)] = 64
    """Deepest nesting of JSON."""
    api_requests_per_minute: Count = 0
    """Calls of one user, or of one address on public paths; 0: no limit."""
    calls_per_user: Annotated[Positive, Field(ge=2)] = 64
    """Calls of one user that one process works on at once, besides `editor.max_streams_per_user` event streams, waits
    and transfers; further ones wait."""


class RetentionSettings(Section):
    """The automatic clean-up."""

    tasks_days: Days = 30
    """How long ended tasks are listed."""
    run_every_s: Seconds = 3600
    """How often a server cleans up."""

    @property
    def run_every(self) -> timedelta:
        return timedelta(seconds=self.run_every_s)
