"""Error messages list the valid names."""

from queryserver.errors.base import known_names
from queryserver.errors.statements import UnknownDialect


def test_up_to_twenty_names_are_listed():
    assert known_names(["duckdb", "sqlite"]) == " Configured: duckdb, sqlite."
    assert known_names([]) == " Configured: none that you may use."
    assert known_names(["a"], word="Known") == " Known: a."
    names = [f"n{number}" for number in range(32)]
    assert known_names(names[:20]).endswith("n18, n19.")
    assert known_names(names).endswith("n18, n19 and 12 more.")
    assert known_names(["x" * 500]) == f" Configured: {'x' * 100}."


def test_unknown_connector_is_named_and_shortened():
    message = UnknownDialect("y" * 500, ["duckdb"]).message
    assert message == f"The connector {'y' * 100} is not configured. Configured: duckdb."
