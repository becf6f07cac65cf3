"""What an engine adapter declares about itself for the contract suite."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from queryserver.formats.columns import ResultType
from queryserver.sql.parameters import ParameterType


@dataclass(frozen=True, slots=True)
class TypeFact:
    """A statement that returns two rows, a value and a NULL, in one column of the type."""

    name: str
    sql: str
    type: ResultType
    native_type: str
    value: object
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A data-changing statement. `rows` is the expected `modified_rows`; None if the engine reports none."""

    sql: str
    rows: int | None = None
    has_result_set: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """State that lives in one session only: how it is set, and how it is read (one cell)."""

    name: str
    make: str
    look: str
    value: object


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the suite must know about an engine. In statements `{t}` stands for the name of a table that does not exist
    yet."""

    slow_sql: str
    """Runs for about 30 s unless canceled."""
    rows_sql: Callable[[int], str]
    """Returns one column of the integers 0, 1, … in order; rows are produced as they are read."""
    wide_rows_sql: Callable[[int, int], str]
    """Takes the row count and the number of ASCII characters in each row's only text."""
    text_sql: Callable[[str], str]
    """Returns one row and column: the given text as an engine literal."""
    bad_table_sql: str
    bad_table_message: str
    """Part of the engine's own message about it."""
    misspelt_at: tuple[int, int | None] | None
    """Line and column that the engine reports for `misspelt_sql`; None if it reports none."""
    types: tuple[TypeFact, ...]
    changes: tuple[Change, ...]
    """Run in order in one session; the last statement cleans up."""
    session_state: tuple[SessionState, ...]
    unknown_database: str
    known_database: str | None = None
    duplicate_columns_sql: str = "SELECT 1 AS a, 2 AS a"
    misspelt_sql: str = "SELECT '😀é' AS a,\n 1 AS b )"
    no_rows_sql: str = "SELECT 1 AS a, 'x' AS b WHERE 1 = 0"
    fails_midway_sql: str | None = None
    """Returns at least 100,000 rows, then fails."""
    nothing_sql: tuple[str, ...] = ("", "  \n", "-- nothing", "/* nothing */")
    parameter_sql: Callable[[ParameterType], str] = lambda _: "SELECT ? AS v"
    """Returns the parameter of the given type in one row; with `parameter_read_sql`, it is instead a change that stores
    the value."""
    parameter_read_sql: Callable[[ParameterType], str] | None = None
    number_sql: Callable[[str], str] = lambda expression: f"SELECT {expression} AS v"
    """Returns one row with the value of an expression, an integer from 0 to 1000."""
    takes_rows: bool = False
    """Whether a session can run a statement for many rows of values in one call and transaction."""
    nan_is_null: bool = False
    """Whether the engine turns NaN into NULL."""
    inexact_parameters: Collection[ParameterType] = ()
    """Parameter types that the engine stores with reduced precision."""
    driver_words: tuple[str, ...] = ()
    """Words that must not appear in messages: driver names, server paths."""
    submit_within_s: float = 1.0
    """How long `submit` may take for `slow_sql` if the engine plans statements before it returns."""
    many_rows: int = 1_000_000
    """How many rows of 200 characters are read while memory stays flat; more than 100 MiB in total."""
    many_sessions: int = 200
    """How many consecutive sessions must leave nothing behind."""
