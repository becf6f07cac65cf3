"""The parameter values that each engine accepts (docs/clients.md)."""

import pytest

from queryserver.errors.base import InvalidParameter
from queryserver.sql.literals import HIVE, IMPALA, MYSQL, PHOENIX, SPARKSQL, TRINO
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import ParameterSupport, ParameterType, read_parameter_rows, read_parameters

NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@pytest.mark.parametrize("word", NOT_FINITE)
@pytest.mark.parametrize(
    ("literals", "written"),
    [(HIVE, "CAST('{}' AS DOUBLE)"), (SPARKSQL, "CAST('{}' AS DOUBLE)"), (TRINO, "CAST('{}' AS DOUBLE)")],
)
def test_nan_and_infinity_are_casts_if_supported(word, literals, written):
    parameters = read_parameters([{"type": "double", "value": word}])
    literals.support.require(parameters)
    assert literals.write(0, parameters.by_position[0]) == written.format(word)


def test_impala_has_its_own_spellings_of_nan_and_infinity():
    parameters = read_parameters([{"type": "double", "value": word} for word in NOT_FINITE])
    assert [IMPALA.write(0, one) for one in parameters.by_position] == [
        "CAST('nan' AS DOUBLE)",
        "CAST('inf' AS DOUBLE)",
        "CAST('-inf' AS DOUBLE)",
    ]


@pytest.mark.parametrize("word", NOT_FINITE)
@pytest.mark.parametrize("kind", ["double", "decimal"])
@pytest.mark.parametrize(
    "support", [MYSQL.support, PHOENIX.support, ParameterSupport(frozenset(ParameterType))], ids=lambda _: None
)
def test_nan_and_infinity_are_rejected_if_unsupported(word, kind, support):
    with pytest.raises(InvalidParameter, match="1 is NaN or infinite, which this connector does not support"):
        support.require(read_parameters([{"type": kind, "value": word}]))


def test_unsupported_value_is_reported_with_its_row():
    rows = read_parameter_rows([[1.5], [{"type": "double", "value": "NaN"}]])
    with pytest.raises(InvalidParameter, match="parameter_rows: row 2: 1 is NaN or infinite"):
        MYSQL.support.require(rows)


def test_rows_are_stored_under_a_separate_key():
    rows = read_parameter_rows([[1, None], ["x", {"type": "decimal", "value": "1.50"}]])
    stored = StatementParameters(rows).stored()
    assert stored == {"rows": [[1, None], ["x", {"type": "decimal", "value": "1.50"}]], "before": 0}
    assert StatementParameters.read(stored).values == rows


def test_each_row_renders_the_statement_with_its_own_values():
    rows = read_parameter_rows([{"a": 1, "b": "x"}, {"b": "y", "a": 2}])
    bound = BoundStatement("UPDATE t SET b = :b WHERE a = :a OR b = :b", "sqlite", StatementParameters(rows))
    written = [row.render(lambda _, one: str(one.value)) for row in bound.rows]
    assert written == ["UPDATE t SET b = x WHERE a = 1 OR b = x", "UPDATE t SET b = y WHERE a = 2 OR b = y"]
    assert [row.rows for row in bound.rows] == [(), ()]
    bound.row = 1
    assert bound.mask_values("bad value 'y' beside 'x'") == "bad value '…' beside 'x'"
