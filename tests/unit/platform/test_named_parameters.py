"""SQL with parameters by name."""

import pytest

from queryserver.platform.database import NamedQuery


def test_a_parameter_keeps_its_number_when_it_is_used_again():
    query = NamedQuery.of("select :name::text, 'HH24:MI', id from t where id = :id or :name is null")
    assert query.sql == "select $1::text, 'HH24:MI', id from t where id = $2 or $1 is null"
    assert query.arguments({"id": 7, "name": "x"}) == ["x", 7]


def test_values_must_be_those_of_the_parameters():
    query = NamedQuery.of("select :a, :b")
    with pytest.raises(KeyError, match="b"):
        query.arguments({"a": 1, "c": 2})
    with pytest.raises(ValueError, match=r"unknown parameters: \['c'\]"):
        query.arguments({"a": 1, "b": 2, "c": 3})
