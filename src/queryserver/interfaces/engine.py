"""What an SQL engine is to this service (design: Interfaces).

One adapter per engine. Arrow record batches cross this seam; rows exist only at the JSON edge.
Driver errors never leave an adapter: it raises the `EngineError` family of `domain.errors`.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from queryserver.domain.errors.statements import EngineError
from queryserver.domain.result import Column
from queryserver.domain.user import User


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Facts about an engine that services ask for, so that nobody compares dialect names."""

    one_process: bool = False
    """The data belong to one process at a time: only the process that holds them may claim statements."""
    data_name: str = ""
    """With `one_process`: names those data among all connectors; empty: no other connector has them."""
    can_explain: bool = True
    explain_prefix: str = "EXPLAIN "
    explain_column: str | None = None
    """The column of the plan's text, where the answer has others beside it; None: all columns."""
    explain_failure: re.Pattern[str] | None = None
    """What a plan begins with that is a refusal in truth; the rest are the engine's words."""
    reports_progress: bool = False
    places: tuple[tuple[str, int], ...] = ()
    """Hosts and ports that sessions connect to, one of them for each; empty: none, or the driver alone knows."""
    wants_credentials: bool = False
    """Callers log in at the data source themselves, through create_session."""
    wants_external_token: bool = False
    """The engine takes the token of another issuer that the call came with, and no other login."""
    acts_as_caller: bool = False
    """Sessions run under the name of the caller, without a login of theirs: what one sees another may not."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Login at the data source, given by the caller through create_session. Never logged."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to open one engine session."""

    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    credentials: Credentials | None = None
    external_token: str | None = field(default=None, repr=False)
    """The caller's own token, for engines that take it instead of a login (Contract platform 3.9)."""
    token_expires_at: int | None = None
    """Seconds since 1970; from then on the session takes no further statement."""


@dataclass(frozen=True, slots=True)
class OperationHandle:
    """Names one statement within its engine. `token` is opaque text that a re-attaching engine can read back."""

    token: str


class OperationState(StrEnum):
    """Where the engine is with a statement."""

    PENDING = "pending"
    """In the engine's own queue."""
    RUNNING = "running"
    FINISHED = "finished"
    """Done, or its rows can be read with `batches` while the engine still produces them."""
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """No further change will come."""
        return self in _TERMINAL


_TERMINAL = frozenset({OperationState.FINISHED, OperationState.CANCELED, OperationState.FAILED})


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """A look at a statement. `progress` is 0..100, None where the engine tells none.

    `modified_rows` is None until known; after a result set it is final once `batches` has ended.
    `error` is set exactly in FAILED.
    """

    state: OperationState
    has_result_set: bool = False
    progress: int | None = None
    modified_rows: int | None = None
    error: EngineError | None = None


class EngineSession(Protocol):
    """One engine session or connection; `SET` and `USE` state lives here.

    One statement at a time. Not shared between tasks, but for `poll`, `logs` and `cancel`, which may be called
    while another task waits in `poll` or reads `batches`.
    """

    async def submit(self, statement: str) -> OperationHandle:
        """Start a statement and return before it ends.

        Raises StatementRejected (the engine refused the text; StatementDenied where it tells that a right is missing,
        here and wherever a statement fails), EngineUnavailable (never sent), OutcomeUnknown.
        """
        ...

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """The present status; waits up to `wait_s` for a terminal one. An engine's failure is FAILED, not raised.

        A `ResumableSession` returns early when its token has moved.
        """
        ...

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Columns of the result, in order; after FINISHED with a result set."""
        ...

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """The rows, forward only, read once; each batch is bounded in bytes and has one field per column, in order.

        Raises StatementRejected when the engine fails on the way, OutcomeUnknown when the connection is lost.
        """
        ...

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """The engine's log lines from number `start` on; empty where the engine tells none."""
        ...

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the engine; returns once the stop is sent. Idempotent, limited in time."""
        ...

    async def close(self, handle: OperationHandle) -> None:
        """Free what the engine holds for the statement. Idempotent, limited in time, never raises EngineError."""
        ...

    async def is_alive(self) -> bool:
        """Whether the session can take another statement. No round trip to the engine is needed."""
        ...


class Engine(Protocol):
    """One connector at work; owns its pool; shared between tasks."""

    @property
    def dialect(self) -> str:
        """The dialect that statements are written in."""
        ...

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do."""
        ...

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        """Open a session for `user`; leaving it ends the engine's work for it.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database, refused setting).
        """
        ...

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        ...

    async def close(self) -> None:
        """Close the pool. Idempotent."""
        ...


@runtime_checkable
class ResumableEngine(Protocol):
    """An engine whose running statements survive the loss of their client; its sessions are `ResumableSession`s."""

    def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AbstractAsyncContextManager[tuple[EngineSession, OperationHandle]]:
        """Follow a statement that another process started; `batches` goes on after its first `rows_read` rows.

        `token` is what `resume_token` gave last, or the token of the handle. Leaving it ends the statement and its
        session at the engine, unless `detach` was called. Raises OutcomeUnknown (message begins `Results have
        expired`) when the engine no longer knows the statement or those rows cannot be had again, EngineUnavailable.
        """
        ...


@runtime_checkable
class ResumableSession(Protocol):
    """A session whose statement another process can go on following."""

    def resume_token(self, handle: OperationHandle) -> str:
        """The token by which to go on from what `poll` and `batches` gave last.

        It may change with each of them; the former one stays valid until the next of them is asked for anything, so
        that whoever stores rows and token together before going on loses nothing and reads nothing twice.
        """
        ...

    def detach(self) -> None:
        """From now on nothing is stopped at the engine when the session is left."""
        ...
