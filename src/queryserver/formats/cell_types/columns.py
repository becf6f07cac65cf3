"""The type of a column, told from its cells (Contract importer 12.3)."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from queryserver.domain.importing import NULL, STRING, BaseType, CellKind, ColumnType
from queryserver.formats.cell_types.classes import MAX_DOUBLE_DIGITS, MAX_INTEGER_DIGITS, CellFacts, facts_of

_NUMBERS = frozenset({CellKind.INTEGER, CellKind.DECIMAL, CellKind.DOUBLE})
_NUMERIC = _NUMBERS | {CellKind.NON_FINITE}
_ALONE = {
    frozenset({CellKind.BOOLEAN}): ColumnType(BaseType.BOOLEAN),
    frozenset({CellKind.DATE}): ColumnType(BaseType.DATE),
    frozenset({CellKind.TIMESTAMP}): ColumnType(BaseType.DATETIME),
    frozenset({CellKind.TIMESTAMP, CellKind.DATE}): ColumnType(BaseType.DATETIME),
    frozenset({CellKind.TIME}): ColumnType(BaseType.TIME),
    frozenset({CellKind.DURATION}): ColumnType(BaseType.DURATION),
}


@dataclass(slots=True)
class ColumnFacts:
    """What is known of a column; null cells leave no trace.

    Digits are maxima: `integer_digits` and `fraction_digits` of all numbers without an exponent, `longest_integer` of
    the integers within 64 bits. After a text cell nothing else matters, and nothing else is kept up.
    """

    kinds: set[CellKind] = field(default_factory=set[CellKind])
    integer_digits: int = 0
    fraction_digits: int = 0
    longest_integer: int = 0
    is_wide: bool = False
    has_exponent: bool = False

    @property
    def is_text(self) -> bool:
        """Whether one cell is text: then the column is text, whatever else it holds."""
        return CellKind.TEXT in self.kinds

    def add(self, cell: str) -> None:
        """Count a cell."""
        self.add_facts(facts_of(cell))

    def add_all(self, cells: Iterable[str]) -> None:
        """Count cells until one is text."""
        for cell in cells:
            self.add_facts(facts_of(cell))
            if self.is_text:
                return

    def add_facts(self, cell: CellFacts) -> None:
        """Count a cell that has been classified."""
        if cell.kind is CellKind.NULL:
            return
        self.kinds.add(cell.kind)
        if cell.kind in _NUMBERS:
            self.integer_digits = max(self.integer_digits, cell.integer_digits)
            self.fraction_digits = max(self.fraction_digits, cell.fraction_digits)
            self.is_wide = self.is_wide or cell.is_wide
            self.has_exponent = self.has_exponent or cell.has_exponent
            if cell.kind is CellKind.INTEGER:
                self.longest_integer = max(self.longest_integer, cell.integer_digits)

    def merge(self, other: "ColumnFacts") -> None:
        """Count the cells that `other` has counted."""
        self.kinds |= other.kinds
        self.integer_digits = max(self.integer_digits, other.integer_digits)
        self.fraction_digits = max(self.fraction_digits, other.fraction_digits)
        self.longest_integer = max(self.longest_integer, other.longest_integer)
        self.is_wide = self.is_wide or other.is_wide
        self.has_exponent = self.has_exponent or other.has_exponent


def column_type(facts: ColumnFacts, *, is_whole: bool) -> ColumnType:
    """The type of the column. `is_whole`: there are no cells but those counted."""
    if not facts.kinds:
        return NULL
    if facts.kinds <= _NUMERIC:
        return _number_type(facts, is_whole=is_whole)
    return _ALONE.get(frozenset(facts.kinds), STRING)


def _number_type(facts: ColumnFacts, *, is_whole: bool) -> ColumnType:
    if not facts.kinds & _NUMBERS:
        return STRING
    if facts.kinds == {CellKind.INTEGER}:
        # The rest of a file may hold larger numbers than its beginning.
        return ColumnType(BaseType.INT32 if is_whole and not facts.is_wide else BaseType.INT64)
    needs_decimal = CellKind.DECIMAL in facts.kinds or (
        CellKind.DOUBLE in facts.kinds and facts.longest_integer > MAX_DOUBLE_DIGITS
    )
    if not needs_decimal or facts.has_exponent or CellKind.NON_FINITE in facts.kinds:
        return ColumnType(BaseType.FLOAT64)
    precision = facts.integer_digits + facts.fraction_digits
    if precision > MAX_INTEGER_DIGITS:
        return STRING
    return ColumnType(BaseType.DECIMAL, precision, facts.fraction_digits)
