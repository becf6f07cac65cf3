"""Which statement of a script runs next, without the texts of all the others."""

from dataclasses import dataclass

from queryserver.domain.errors.statements import NoMoreStatements
from queryserver.domain.own_limits import own_limit
from queryserver.domain.splitter import (
    Position,
    PreviousStatement,
    Script,
    ScriptStatement,
    next_statement,
    statement_hash,
)
from queryserver.domain.splitter_keywords import expects_result_set


@dataclass(frozen=True, slots=True)
class Choice:
    """The statement `index` of `count`: characters [first, stop) of the script."""

    index: int
    count: int
    first: int
    stop: int
    start: Position
    end: Position
    hash: str
    """As `statement_hash` gives it."""
    has_result_set: bool
    is_over: bool
    """The statement before was the last one: no statement is left to run."""
    own_limit: int | None = None
    """The literal row limit that the statement itself ends with."""

    def statement(self, script: str) -> ScriptStatement:
        """The statement with its text."""
        return ScriptStatement(script[self.first : self.stop], self.start, self.end)


@dataclass(frozen=True, slots=True)
class Steering:
    """What decides about the choice: the statement before, and whether a full handle came."""

    previous: PreviousStatement | None = None
    full_form: bool = True


def choose(script: str, dialect: str, steering: Steering) -> Choice | None:
    """The statement that runs next; None: the script has no statements."""
    statements = Script(script, dialect)
    if not statements:
        return None
    index, is_over = len(statements) - 1, False
    try:
        index = next_statement(statements, steering.previous, full_form=steering.full_form)
    except NoMoreStatements:
        is_over = True
    chosen = statements[index]
    first, stop = statements.span(index)
    return Choice(
        index=index,
        count=len(statements),
        first=first,
        stop=stop,
        start=chosen.start,
        end=chosen.end,
        hash=statement_hash(chosen.text),
        has_result_set=expects_result_set(chosen.text, dialect),
        is_over=is_over,
        own_limit=own_limit(chosen.text, dialect),
    )
