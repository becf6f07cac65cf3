"""The tests of SQLAlchemy's suite that are skipped, by engine, with the reason for each. No requirement of the suite
covers them.
"""

from collections.abc import Mapping

ONE_LEVEL = "it has one level of isolation"
NO_LENGTH = "DuckDB forgets the length of a VARCHAR"
CHANGED = "the server counts rows that were changed, not those that had the values already"
NO_SCHEMA = "a schema of sqlite is a file, and statements cannot attach one"
DOUBLES = "the engine divides decimals as doubles"
NO_ORDER = "the test compares rows without ORDER BY, and DuckDB gives those of a window in another order"

EXCLUDED: Mapping[str, Mapping[str, str]] = {
    "duckdb": {
        "CTETest": "DuckDB refuses rows that refer to rows of the same INSERT",
        "DistinctOnTest": "it has DISTINCT ON, which the test expects to be ignored",
        "IdentityAutoincrementTest": "DuckDB has no identity columns",
        "LongNameBlowoutTest": "DuckDB has names of any length",
        "ComponentReflectionTest::test_reflect_table_temp_table": NO_LENGTH,
        "ComponentReflectionTestExtra::test_string_length_reflection": NO_LENGTH,
        "ComputedReflectionTest::test_get_column_returns_computed": "DuckDB adds a cast to the expression",
        "ComputedReflectionTest::test_get_column_returns_persisted": "DuckDB adds a cast to the expression",
        "IsolationLevelTest::test_dialect_user_setting_is_restored": ONE_LEVEL,
        "NumericTest::test_decimal_coerce_round_trip[": "DuckDB makes a decimal with three digits of a number",
        "TrueDivTest::test_truediv_divisor[numeric": DOUBLES,
        "WindowFunctionTest::test_window_range": NO_ORDER,
    },
    "mysql": {"RowCountTest::test_multi_update_rowcount": CHANGED, "RowCountTest::test_update_rowcount2": CHANGED},
    "postgresql": {"DistinctOnTest": "it has DISTINCT ON, which the test expects to be ignored"},
    "sqlite": {
        "ComponentReflectionTest::test_metadata[False-_exclusions_01-True": NO_SCHEMA,
        "ComponentReflectionTest::test_metadata[True-_exclusions_00-True": NO_SCHEMA,
        "ComponentReflectionTestExtra::test_check_constraint_inline[True": NO_SCHEMA,
        "ComponentReflectionTestExtra::test_check_constraint_mixed[True": NO_SCHEMA,
        "ComponentReflectionTestExtra::test_check_constraint_no_constraint[True": NO_SCHEMA,
        "ComponentReflectionTestExtra::test_check_constraint_parenthesized_expressions[True": NO_SCHEMA,
        "ComponentReflectionTestExtra::test_check_constraint_standalone[True": NO_SCHEMA,
        "IsolationLevelTest::test_dialect_user_setting_is_restored": ONE_LEVEL,
        "TrueDivTest::test_truediv_divisor[numeric_38": DOUBLES,
    },
}
"""Maps an engine to its excluded tests and the reasons. A key is a class name or a prefix of
`class::test[parameters]`.
"""


def reason_for(engine: str, name: str) -> str | None:
    """Return why a test is excluded, or None if it must pass. Its name has the format
    `Class_engine::test[parameters]`.
    """
    left, _, right = name.partition("::")
    kind = left.split("_")[0]
    excluded = EXCLUDED.get(engine, {})
    tests = (reason for word, reason in excluded.items() if "::" in word and f"{kind}::{right}[".startswith(word))
    return excluded.get(kind) or next(tests, None)
