"""What is counted (Contract platform 9.3). No value may name a user, statement, path or host."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

Judgement = Literal["accepted", "refused", "unavailable"]


class Metrics:
    """Counts nothing, as for commands and with `enable_prometheus = false`; `PrometheusMetrics` counts.

    Dialects that the catalogue does not know are counted together, and so are unknown schemes.
    """

    def login(self, result: Judgement, back_end: str) -> None:
        """A login was judged; `back_end` is its name in the settings, empty when none of them accepted it."""

    def login_throttled(self) -> None:
        """A login was refused before the password was checked."""

    def token_issued(self, kind: str) -> None:
        """A token was issued: `access` or `refresh`."""

    def external_token(self, result: Judgement) -> None:
        """A token of another issuer was judged."""

    def keys_fetched(self, result: Literal["ok", "failed"]) -> None:
        """The keys of a key server were requested."""

    def index_objects(self, counts: Mapping[str, int]) -> None:
        """How many objects of each kind the index of the metadata search has now."""

    def searched(self, source: str, seconds: float) -> None:
        """A source of the metadata search was searched, with success or not."""

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        """A statement reached its terminal state `outcome`, that long after a runner had begun with it."""

    def engine_failed(self, dialect: str, kind: str) -> None:
        """An engine refused or failed; `kind` is the code of the error."""

    def engine_session(self, dialect: str) -> AbstractContextManager[None]:
        """Counts as an open engine session while inside."""
        del dialect
        return nullcontext()

    def lease_lost(self) -> None:
        """Another process took a running statement over."""

    def results_expired(self, results: int) -> None:
        """So many results were deleted, whose time was over."""

    def storage_operation(self, scheme: str, operation: str, outcome: str) -> None:
        """One call on files was answered; `outcome` is `ok` or the code of its error."""

    def upload(self) -> AbstractContextManager[None]:
        """Counts as an upload under way while inside."""
        return nullcontext()

    def query(self, seconds: float, /) -> None:
        """A connection to the service database was used that long."""


UNMEASURED = Metrics()
