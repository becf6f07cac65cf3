"""What is counted (Contract platform 9.3). No value may name a user, statement, path or host."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

LoginResult = Literal["accepted", "refused", "unavailable"]
ExternalTokenResult = Literal["accepted", "refused", "unavailable"]
FetchResult = Literal["ok", "failed"]


class AccountMetrics(Protocol):
    """Logins and tokens."""

    def login(self, result: LoginResult, back_end: str) -> None:
        """A login was judged; `back_end` is its name in the settings, empty when none of them said yes."""
        ...

    def login_throttled(self) -> None:
        """A login was refused before the password was looked at."""
        ...

    def token_issued(self, kind: str) -> None:
        """A token was issued: `access` or `refresh`."""
        ...

    def external_token(self, result: ExternalTokenResult) -> None:
        """A token of another issuer was judged."""
        ...

    def keys_fetched(self, result: FetchResult) -> None:
        """A key server was asked for its keys."""
        ...


class SearchMetrics(Protocol):
    """The metadata search."""

    def index_objects(self, counts: Mapping[str, int]) -> None:
        """How many objects of each kind the index of this service has now."""
        ...

    def searched(self, source: str, seconds: float) -> None:
        """A source was searched, with success or not."""
        ...


class StatementMetrics(Protocol):
    """Statements and engines. Dialects that the catalogue does not know are counted together."""

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        """A statement reached its terminal state `outcome`, that long after a runner had begun with it."""
        ...

    def engine_failed(self, dialect: str, kind: str) -> None:
        """An engine refused or failed; `kind` is the code of the error."""
        ...

    def engine_session(self, dialect: str) -> AbstractContextManager[None]:
        """Counts as an open engine session while inside."""
        ...

    def lease_lost(self) -> None:
        """Another process took a running statement over."""
        ...

    def results_expired(self, results: int) -> None:
        """Results whose time was over."""
        ...


class StorageMetrics(Protocol):
    """Calls on files, and files on their way in."""

    def storage_operation(self, scheme: str, operation: str, outcome: str) -> None:
        """One call was answered; `outcome` is `ok` or the code of its error. Unknown schemes are counted together."""
        ...

    def upload(self) -> AbstractContextManager[None]:
        """Counts as an upload on its way while inside."""
        ...


class DatabaseMetrics(Protocol):
    """The service database."""

    def query(self, seconds: float, /) -> None:
        """A connection of the pool was used that long."""
        ...


class Metrics(AccountMetrics, SearchMetrics, StatementMetrics, StorageMetrics, DatabaseMetrics, Protocol):
    """All of them."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Counts in the service database, of all servers that share it."""

    results_bytes: int
    statements: Mapping[tuple[str, str], int]
    """Statements that wait or run, by dialect and state."""


class MetricsText(Protocol):
    """All counts as text."""

    async def text(self) -> bytes:
        """In the text format of Prometheus; of all worker processes of this server together."""
        ...


class Unmeasured:
    """Counts nothing: for commands, and with `desktop.metrics.enable_prometheus = false`."""

    def login(self, result: LoginResult, back_end: str) -> None:
        """See the Protocol, here and below."""

    def login_throttled(self) -> None:
        """See above."""

    def token_issued(self, kind: str) -> None:
        """See above."""

    def external_token(self, result: ExternalTokenResult) -> None:
        """See above."""

    def keys_fetched(self, result: FetchResult) -> None:
        """See above."""

    def index_objects(self, counts: Mapping[str, int]) -> None:
        """See above."""

    def searched(self, source: str, seconds: float) -> None:
        """See above."""

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        """See above."""

    def engine_failed(self, dialect: str, kind: str) -> None:
        """See above."""

    def engine_session(self, dialect: str) -> AbstractContextManager[None]:
        del dialect
        return nullcontext()

    def lease_lost(self) -> None:
        """See above."""

    def results_expired(self, results: int) -> None:
        """See above."""

    def storage_operation(self, scheme: str, operation: str, outcome: str) -> None:
        """See above."""

    def upload(self) -> AbstractContextManager[None]:
        return nullcontext()

    def query(self, seconds: float, /) -> None:
        """See above."""


UNMEASURED: Metrics = Unmeasured()
"""The one instance that is needed."""
