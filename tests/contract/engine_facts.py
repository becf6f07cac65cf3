"""The facts about an engine that the contract suite needs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from queryserver.formats.arrow import ResultType
from queryserver.sql.parameters import ParameterType


@dataclass(frozen=True, slots=True)
class TypeFact:
    """A statement that returns one column of the type, with two rows: a value and NULL."""

    name: str
    sql: str
    type: ResultType
    native_type: str
    value: object
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A data-changing statement. `rows` is the expected `modified_rows`; None if the engine does not count them."""

    sql: str
    rows: int | None = None
    has_result_set: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """State that lasts only for one session, with the statements that set it and read it (as a single value)."""

    name: str
    make: str
    look: str
    value: object


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The facts about an engine that the suite needs.

    In statements, `{t}` stands for the name of a table that does not yet exist.
    """

    slow_sql: str
    """A statement that runs for about 30 s unless it is canceled."""
    rows_sql: Callable[[int], str]
    """Takes a row count. The statement returns the integers 0, 1, … in one column, and the engine produces the rows
    while they are read.
    """
    wide_rows_sql: Callable[[int, int], str]
    """Takes the number of rows, and the number of ASCII characters in the single value of each row."""
    text_sql: Callable[[str], str]
    """Takes a string. The statement returns the string, written as an engine literal, as a single value."""
    bad_table_sql: str
    bad_table_message: str
    """Part of the engine's message about `bad_table_sql`."""
    misspelled_at: tuple[int, int | None] | None
    """The line and column that the engine reports for the error in `misspelled_sql`; None if it reports no position."""
    types: tuple[TypeFact, ...]
    changes: tuple[Change, ...]
    """Statements that run in this order in one session. The last one cleans up."""
    session_state: tuple[SessionState, ...]
    unknown_database: str
    known_database: str | None = None
    duplicate_columns_sql: str = "SELECT 1 AS a, 2 AS a"
    misspelled_sql: str = "SELECT '😀é' AS a,\n 1 AS b )"
    no_rows_sql: str = "SELECT 1 AS a, 'x' AS b WHERE 1 = 0"
    fails_midway_sql: str | None = None
    """A statement that returns at least 100,000 rows and then fails."""
    nothing_sql: tuple[str, ...] = ("", "  \n", "-- nothing", "/* nothing */")
    parameter_sql: Callable[[ParameterType], str] = lambda _: "SELECT ? AS v"
    """Takes a parameter type. The statement returns a parameter of this type in one row.

    If `parameter_read_sql` is set, the statement stores the value instead, and `parameter_read_sql` reads it.
    """
    parameter_read_sql: Callable[[ParameterType], str] | None = None
    number_sql: Callable[[str], str] = lambda expression: f"SELECT {expression} AS v"
    """Takes an expression. The statement returns the expression's value, an integer from 0 to 1000, in one row."""
    takes_rows: bool = False
    """Whether a session can run one statement for many rows of parameter values, in one call and one transaction."""
    nan_is_null: bool = False
    """Whether the engine converts NaN to NULL."""
    inexact_parameters: Collection[ParameterType] = ()
    """Parameter types that the engine stores with reduced precision."""
    driver_words: tuple[str, ...] = ()
    """Words that no error message may contain, such as driver names and server paths."""
    submit_within_s: float = 1.0
    """How long `submit` may take for `slow_sql`, in seconds; engines may plan a statement before `submit` returns."""
    many_rows: int = 1_000_000
    """The number of rows of 200 characters that are read with constant memory; more than 100 MiB in total."""
    many_sessions: int = 200
    """How many consecutive sessions are opened without leaking resources."""
