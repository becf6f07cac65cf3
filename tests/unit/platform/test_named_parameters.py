"""SQL with named parameters."""

import pytest

from queryserver.platform.database import NamedQuery


def test_repeated_parameter_keeps_its_number():
    query = NamedQuery.of("select :name::text, 'HH24:MI', id from t where id = :id or :name is null")
    assert query.sql == "select $1::text, 'HH24:MI', id from t where id = $2 or $1 is null"
    assert query.arguments({"id": 7, "name": "x"}) == ["x", 7]


def test_missing_and_unknown_values_are_refused():
    query = NamedQuery.of("select :a, :b")
    with pytest.raises(KeyError, match="b"):
        query.arguments({"a": 1, "c": 2})
    with pytest.raises(ValueError, match=r"unknown parameters: \['c'\]"):
        query.arguments({"a": 1, "b": 2, "c": 3})
