"""Tests of the suite that cannot pass on an engine and that no requirement names, with the reason."""

from collections.abc import Mapping

UNSEEN = "the metadata calls have a session of their own, which does not see what is not committed"
FOREIGN_KEYS = "DuckDB checks foreign keys row by row, and refuses what was deleted in the same transaction"

ONE_LEVEL = "it has one level of isolation"

EXCLUDED: Mapping[str, Mapping[str, str]] = {
    "duckdb": {
        "BizarroCharacterTest": UNSEEN,
        "ComponentReflectionTest": UNSEEN,
        "ComponentReflectionTestExtra": UNSEEN,
        "CompositeKeyReflectionTest": UNSEEN,
        "QuotedNameArgumentTest": UNSEEN,
        "TableViaSelectTest": UNSEEN,
        "CTETest": FOREIGN_KEYS,
        "JoinTest": FOREIGN_KEYS,
        "DistinctOnTest": "its compiler is that of PostgreSQL, which has DISTINCT ON",
        "IdentityAutoincrementTest": "DuckDB has no identity columns",
        "LongNameBlowoutTest": "DuckDB has names of any length",
        "IsolationLevelTest::test_dialect_user_setting_is_restored": ONE_LEVEL,
        "TrueDivTest::test_truediv_divisor": "DuckDB divides decimals as doubles",
        "NumericTest::test_decimal_coerce_round_trip": "DuckDB makes a decimal with three digits of a number",
    },
    "postgresql": {"DistinctOnTest": "it has DISTINCT ON, which the test expects to be ignored"},
    "sqlite": {"IsolationLevelTest::test_dialect_user_setting_is_restored": ONE_LEVEL},
}


def reason_for(engine: str, name: str) -> str | None:
    """Why the test is left out; None for one that must pass. `name`: `Class_engine::test[parameters]`."""
    left, _, right = name.partition("::")
    words = (left.split("_")[0], f"{left.split('_')[0]}::{right.split('[')[0]}")
    return next((reason for word in words if (reason := EXCLUDED.get(engine, {}).get(word))), None)
