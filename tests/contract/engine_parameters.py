"""The part of the engine contract that tests statement parameters."""

import datetime as dt
import json
import math
from base64 import b64encode
from decimal import Decimal
from typing import Any

import pytest
from tests.cases import every_case
from tests.contract.engine_basis import EngineBasis
from tests.contract.engine_driving import failure, run

from queryserver.engines.protocol import Engine, EngineSession, RowsSession
from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import StatementRejected
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import ParameterType, read_parameter_rows, read_parameters

TEXTS = (
    "x",
    'O\'Brien said "no" to `it` and [that]',
    "Zoë 🐘 日本 %s %(x)s {y} $1 -- /* */",
    "?",
    ":x ::y ?? a?",
    "\\",
    "\\' or 1=1 -- ",
    "'' \\n \\u0041 \\101 \\%",
    "line\r\n-- no comment\n\ttab; drop table t",
    "${env:PATH} ${hiveconf:x} $tag$ @v",
)
BLOB = bytes(range(256))


def typed(kind: str, value: object) -> dict[str, object]:
    return {"type": kind, "value": value}


VALUES: tuple[tuple[Any, Any], ...] = (
    (None, None),
    (True, True),
    (typed("boolean", False), False),
    (0, 0),
    (-5, -5),
    (typed("bigint", -(2**63)), -(2**63)),
    (typed("bigint", str(2**63 - 1)), 2**63 - 1),
    (2.5, 2.5),
    (-1e-5, -1e-5),
    (typed("double", 1.7976931348623157e308), 1.7976931348623157e308),
    (typed("decimal", "-1.50"), Decimal("-1.50")),
    (typed("decimal", "12345678901234567890.123456"), Decimal("12345678901234567890.123456")),
    *((text, text) for text in TEXTS),
    (typed("varchar", "O'Brien"), "O'Brien"),
    (typed("date", "2024-02-29"), dt.date(2024, 2, 29)),
    (typed("date", "0987-06-05"), dt.date(987, 6, 5)),
    (typed("time", "10:20:30"), dt.time(10, 20, 30)),
    (typed("timestamp", "2024-01-31T10:20:30.125"), dt.datetime(2024, 1, 31, 10, 20, 30, 125000)),  # noqa: DTZ001 a naive timestamp
    (typed("timestamp_tz", "2024-01-31 10:20:30+02:00"), dt.datetime(2024, 1, 31, 8, 20, 30, tzinfo=dt.UTC)),
    (typed("binary", b64encode(BLOB).decode()), BLOB),
    ([1, 2, None], [1, 2, None]),
    (["a'b", "\\"], ["a'b", "\\"]),
    *((typed(kind, None), None) for kind in ParameterType if kind is not ParameterType.ARRAY),
)
NOT_FINITE = ((typed("double", "NaN"), math.nan), (typed("double", "-Infinity"), -math.inf))


def lacking(mark: pytest.MarkDecorator) -> dict[str, pytest.MarkDecorator]:
    """Return the `known_failures` of an engine that does not support parameters."""
    return {name: mark for name in vars(ParameterContract) if name.startswith("test_")}


class ParameterContract(EngineBasis):
    """The `EngineContract` tests for statement parameters."""

    def bound(self, statement: str, *values: object) -> BoundStatement:
        return BoundStatement(statement, self.dialect_of_engine, StatementParameters(read_parameters(list(values))))

    @pytest.fixture(autouse=True)
    def _dialect(self, engine: Engine) -> None:
        self.dialect_of_engine = engine.dialect

    @pytest.mark.capability("Parameters")
    async def test_bound_values_round_trip(self, engine: Engine, session: EngineSession) -> None:
        support, tried = engine.capabilities.parameters, 0
        assert support.types
        with every_case() as attempt:
            for given, value in (*VALUES, *(NOT_FINITE if support.not_finite else ())):
                with attempt(repr(given)):
                    parameters = read_parameters([given])
                    try:
                        support.require(parameters)
                    except InvalidParameter:
                        continue
                    kind = parameters.by_position[0].type
                    sql = self.facts.parameter_sql(kind or ParameterType.VARCHAR)
                    answer = await run(session, self.bound(sql, given))
                    if self.facts.parameter_read_sql is not None:
                        answer = await run(session, self.facts.parameter_read_sql(kind or ParameterType.VARCHAR))
                    if isinstance(value, float) and math.isnan(value) and self.facts.nan_is_null:
                        value = None  # noqa: PLW2901
                    assert is_same(answer.cell, value, exact=kind not in self.facts.inexact_parameters), answer.cell
                    tried += 1
        assert tried >= 20

    @pytest.mark.capability("Parameters")
    async def test_question_marks_in_quotes_and_comments_are_not_markers(
        self, engine: Engine, session: EngineSession
    ) -> None:
        assert engine.capabilities.parameters.types
        statement = self.facts.number_sql("length('a?:b') + ? /* ? :b */")
        assert (await run(session, self.bound(statement, 7))).cell == 11

    @pytest.mark.capability("Parameters")
    async def test_value_may_have_several_placeholders(self, engine: Engine, session: EngineSession) -> None:
        assert engine.capabilities.parameters.types
        statement = self.facts.number_sql("100 + :n + 0 * :n")
        given = StatementParameters(read_parameters({"n": 7}))
        assert (await run(session, BoundStatement(statement, engine.dialect, given))).cell == 107

    @pytest.mark.capability("Parameters")
    async def test_rows_of_values_are_one_transaction(self, engine: Engine, session: EngineSession, table: str) -> None:
        assert engine.capabilities.parameters.types
        assert (isinstance(session, RowsSession) and session.takes_rows) == self.facts.takes_rows
        if not self.facts.takes_rows:
            return
        await run(session, f"CREATE TABLE {table} (n INTEGER PRIMARY KEY, t VARCHAR(40))")

        def rows(statement: str, *values: object) -> BoundStatement:
            given = StatementParameters(read_parameter_rows(list(values)))
            return BoundStatement(statement.format(t=table), self.dialect_of_engine, given)

        insert, count = "INSERT INTO {t} VALUES (?, ?)", f"SELECT count(*), count(t) FROM {table}"
        answer = await run(session, rows(insert, *([n, f"it's {n}" if n % 3 else None] for n in range(50))))
        assert (answer.status.has_result_set, answer.status.modified_rows) == (False, 50)
        assert (await run(session, count)).rows == [(50, 33)]
        assert (await run(session, f"SELECT t FROM {table} WHERE n = 1")).cell == "it's 1"
        answer = await run(session, rows("UPDATE {t} SET t = :t WHERE n < :n", {"t": "x", "n": 2}, {"n": 1, "t": "y"}))
        assert answer.status.modified_rows == 3
        failing = rows(insert, [100, "a"], [101, "b"], [1, "s3cret"], [102, "c"])
        error = await failure(session, failing)
        assert failing.row == 2
        assert "s3cret" not in failing.mask_values(error.message)
        assert (await run(session, count)).rows == [(50, 34)]

    @pytest.mark.capability("Parameters")
    async def test_error_message_contains_no_values(self, engine: Engine, session: EngineSession) -> None:
        """The misspelled word follows the placeholder, so an excerpt in the engine's message might contain a value."""
        assert engine.capabilities.parameters.types
        statement = self.bound(self.facts.misspelled_sql.replace("\n 1 ", "\n ? "), "s3cret'text")
        error = await failure(session, statement)
        assert isinstance(error, StatementRejected)
        assert "s3cret" not in statement.mask_values(error.message)
        assert "733363726574" not in statement.mask_values(error.message)  # the value in hexadecimal

    @pytest.mark.capability("Parameters")
    async def test_error_position_refers_to_the_text_with_markers(self, engine: Engine, session: EngineSession) -> None:
        assert engine.capabilities.parameters.types
        statement = self.bound(self.facts.misspelled_sql.replace("\n 1 ", "\n ? "), "s3cret'text")
        error = await failure(session, statement)
        place = statement.position(error.location)
        assert (place and (place.line, place.column)) == self.facts.misspelled_at


def is_same(got: Any, value: Any, *, exact: bool) -> bool:
    """Return whether `got` equals the value, after allowing for the types in which engines return it."""
    if value is None or got is None:
        return got is value
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(got)
    if isinstance(value, Decimal):
        return Decimal(str(got)) == value if exact else math.isclose(float(got), float(value))
    if isinstance(value, dt.datetime):
        zone = value.tzinfo
        seen = dt.datetime.fromisoformat(got.replace(" UTC", "+00:00")) if isinstance(got, str) else got
        return seen.replace(tzinfo=zone) == value if seen.tzinfo is None else seen == value
    if isinstance(value, dt.date | dt.time):
        return str(got).split(".")[0] == value.isoformat()
    if isinstance(value, list) and isinstance(got, str):  # Spark returns an array as a string without escaping
        return json.loads(got.replace("\\\\", "\\").replace("\\", "\\\\")) == value
    if isinstance(value, float):
        return math.isclose(float(got), value, rel_tol=1e-15)
    return got == value
