"""The end of messages about what is not there: what is there instead."""

from queryserver.errors.base import configured
from queryserver.errors.statements import UnknownDialect


def test_names_are_listed_up_to_twenty():
    assert configured(["duckdb", "sqlite"]) == " Configured: duckdb, sqlite."
    assert configured([]) == " Configured: nothing that you may use."
    assert configured(["a"], word="Known") == " Known: a."
    names = [f"n{number}" for number in range(32)]
    assert configured(names[:20]).endswith("n18, n19.")
    assert configured(names).endswith("n18, n19 and 12 more.")
    assert configured(["x" * 500]) == f" Configured: {'x' * 100}."


def test_a_refused_connector_is_named_and_cut():
    message = UnknownDialect("y" * 500, ["duckdb"]).message
    assert message == f"The connector {'y' * 100} is not configured. Configured: duckdb."
