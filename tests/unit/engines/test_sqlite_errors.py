"""Every exception of the driver means something."""

import apsw
import pytest
from tests.cases import each

from queryserver.engines.sqlite.connection import opening_errors, statement_errors
from queryserver.engines.threaded import Interrupted
from queryserver.errors.statements import EngineError, EngineUnavailable, SessionLost, StatementRejected

CLASSES = sorted(
    {member for member in vars(apsw).values() if isinstance(member, type) and issubclass(member, Exception)},
    key=lambda member: member.__name__,
)
MEANINGS: dict[type[Exception], type[EngineError]] = {
    apsw.InterruptError: Interrupted,
    apsw.ConnectionClosedError: SessionLost,
    apsw.ConnectionNotClosedError: SessionLost,
    apsw.CursorClosedError: SessionLost,
    apsw.ForkingViolationError: SessionLost,
    apsw.ThreadingViolationError: SessionLost,
}


def test_the_driver_has_the_exceptions_that_we_walk() -> None:
    assert len(CLASSES) >= 40


@each("raised", CLASSES)
def test_every_exception_of_a_statement_becomes_a_domain_error(raised: type[Exception]) -> None:
    with pytest.raises(EngineError) as caught, statement_errors():
        raise raised("what happened")
    assert type(caught.value) is MEANINGS.get(raised, StatementRejected)


@each("raised", CLASSES)
def test_every_exception_of_opening_means_that_the_engine_is_unavailable(raised: type[Exception]) -> None:
    with pytest.raises(EngineUnavailable), opening_errors():
        raise raised("unable to open database file")
