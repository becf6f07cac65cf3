"""Every exception of the driver means something."""

from pathlib import Path

import duckdb
import pytest
from tests.cases import each

from queryserver.engines.duckdb.connection import opening_errors, statement_errors
from queryserver.engines.threaded import Interrupted
from queryserver.errors.statements import EngineError, EngineUnavailable, SessionLost, StatementRejected

CLASSES = sorted(
    {
        member
        for member in vars(duckdb).values()
        if isinstance(member, type) and issubclass(member, Exception) and member is not duckdb.Warning  # PEP 249's
    },
    key=lambda member: member.__name__,
)
MEANINGS: dict[type[Exception], type[EngineError]] = {
    duckdb.InterruptException: Interrupted,
    duckdb.ConnectionException: SessionLost,
}


def test_the_driver_has_the_exceptions_that_we_walk() -> None:
    assert len(CLASSES) >= 28


@each("raised", CLASSES)
def test_every_exception_of_a_statement_becomes_a_domain_error(raised: type[Exception]) -> None:
    with pytest.raises(EngineError) as caught, statement_errors(None):
        raise raised("Some Error: what happened")
    assert type(caught.value) is MEANINGS.get(raised, StatementRejected)


@each("raised", CLASSES)
def test_every_exception_of_opening_means_that_the_engine_is_unavailable(raised: type[Exception]) -> None:
    with pytest.raises(EngineUnavailable), opening_errors():
        raise raised("Some Error: /srv/data/x.duckdb held by PID 42")


def test_arrow_s_reader_hands_on_what_the_engine_says() -> None:
    with pytest.raises(StatementRejected, match=r"^Invalid Input Error: boom$"), statement_errors(None):
        raise OSError("Invalid Input Error: boom")
    with pytest.raises(Interrupted), statement_errors(None):
        raise OSError("INTERRUPT Error: Interrupted!")


def test_paths_and_traces_are_cut() -> None:
    text = 'IO Error: no room in "/srv/data/x.duckdb"\n\nStack Trace:\n/usr/lib/x.so(+0x1)'
    with pytest.raises(StatementRejected) as caught, statement_errors(Path("/srv/data")):
        raise duckdb.IOException(text)
    assert caught.value.message == 'IO Error: no room in "x.duckdb"'
