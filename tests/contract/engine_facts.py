"""What an engine adapter declares about itself before the contract suite runs over it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from queryserver.formats.columns import ResultType
from queryserver.sql.parameters import ParameterType


@dataclass(frozen=True, slots=True)
class TypeFact:
    """A statement that answers two rows, a value and a NULL, in one column of the type in question."""

    name: str
    sql: str
    type: ResultType
    native_type: str
    value: object
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A statement that changes something. `rows` is what `modified_rows` must say; None: nothing."""

    sql: str
    rows: int | None = None
    has_result_set: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """Something that lives in one session only: how it is made, and how it is looked at (one cell)."""

    name: str
    make: str
    look: str
    value: object


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the suite must know of an engine. In statements `{t}` stands for the name of a table not yet there."""

    slow_sql: str
    """Runs for about 30 s unless it is stopped."""
    rows_sql: Callable[[int], str]
    """One column of the integers 0, 1, … in order; any number of them, produced as they are read."""
    wide_rows_sql: Callable[[int, int], str]
    """So many rows of one text of so many ASCII characters."""
    text_sql: Callable[[str], str]
    """One row, one column: the text given, written as a literal of the engine."""
    bad_table_sql: str
    bad_table_message: str
    """Part of what the engine itself says about it."""
    misspelt_at: tuple[int, int | None] | None
    """Line and column that the engine says for `misspelt_sql`; None: it says none."""
    types: tuple[TypeFact, ...]
    changes: tuple[Change, ...]
    """Run in order in one session, the last of them leaves nothing behind."""
    session_state: tuple[SessionState, ...]
    unknown_database: str
    known_database: str | None = None
    duplicate_columns_sql: str = "SELECT 1 AS a, 2 AS a"
    misspelt_sql: str = "SELECT '😀é' AS a,\n 1 AS b )"
    no_rows_sql: str = "SELECT 1 AS a, 'x' AS b WHERE 1 = 0"
    fails_midway_sql: str | None = None
    """Answers at least 100,000 rows, then fails."""
    nothing_sql: tuple[str, ...] = ("", "  \n", "-- nothing", "/* nothing */")
    parameter_sql: Callable[[ParameterType], str] = lambda _: "SELECT ? AS v"
    """One row with the value of one place, of that type; with `parameter_read_sql` a change that stores it."""
    parameter_read_sql: Callable[[ParameterType], str] | None = None
    number_sql: Callable[[str], str] = lambda expression: f"SELECT {expression} AS v"
    """One row with the value of an expression, an integer from 0 to 1000."""
    takes_rows: bool = False
    """Whether a session runs a statement for many rows of values in one call, in a transaction."""
    nan_is_null: bool = False
    """Whether the engine makes NULL of NaN."""
    inexact_parameters: Collection[ParameterType] = ()
    """What the engine keeps with fewer digits."""
    driver_words: tuple[str, ...] = ()
    """What a message must not hold: names of the driver, paths of the server."""
    submit_within_s: float = 1.0
    """Where an engine plans a statement before it answers `submit`, how long that may take for `slow_sql`."""
    many_rows: int = 1_000_000
    """Rows of 200 characters that pass while memory stays flat; more than 100 MiB of them."""
    many_sessions: int = 200
    """So many, one after the other, leave nothing behind."""
