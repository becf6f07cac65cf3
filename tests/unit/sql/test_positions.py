"""Lines and columns of errors, converted from each engine's way of counting (Contract editor 3.4)."""

import pytest
from tests.timing import TRIES, processor_s

from queryserver.errors.statements import Character, ErrorExcerpt, ErrorLocation, LineColumn, Octet, Rest, Unit
from queryserver.sql.positions import Position, after_prefix, position_of, without_prefix

TEXT = "SELECT 'é😀',\r\n  nope\rFROM t\n"
SCREEN, UTF16 = Unit.SCREEN, Unit.UTF16


@pytest.mark.parametrize(
    ("place", "position"),
    [
        (None, None),
        (Character(0), (1, 1)),
        (Character(8), (1, 9)),
        (Character(14), (2, 1)),  # after \r\n
        (Character(21), (3, 1)),  # after a lone \r
        (Character(len(TEXT)), (4, 1)),
        (Character(len(TEXT) + 1), None),
        (Character(-1), None),
        (Octet(8), (1, 9)),
        (Octet(10), (1, 10)),  # é takes two bytes
        (Octet(14), (1, 11)),  # 😀 takes four bytes
        (Octet(999), None),
        (LineColumn(1, 9), (1, 9)),
        (LineColumn(2, 3), (2, 3)),
        (LineColumn(2, 8), (3, 1)),  # for engines, only \n ends a line
        (LineColumn(2), (2, None)),
        (LineColumn(2, 99), (2, None)),
        (LineColumn(2, 0), (2, None)),
        (LineColumn(4, 1), None),
        (LineColumn(0, 1), None),
        (LineColumn(1, 12, UTF16), (1, 11)),  # 😀 takes two UTF-16 code units
        (ErrorExcerpt(1, "SELECT 'é😀',", 11, SCREEN), (1, 11)),
        (ErrorExcerpt(2, "  nope\rFROM t", 2, SCREEN), (2, 3)),
        (ErrorExcerpt(2, "...pe\rFROM t", 3, SCREEN), (2, 5)),
        (ErrorExcerpt(2, "  no...", 2, SCREEN), (2, 3)),
        (ErrorExcerpt(2, "no such text", 2, SCREEN), None),
        (ErrorExcerpt(4, "  nope\rFROM t", 2, SCREEN), (2, 3)),  # lines of surrounding text are counted as well
        (ErrorExcerpt(9, "\n", 0, SCREEN), None),
        (Rest(1, "nope\rFROM t\n"), (2, 3)),
        (Rest(1, "FROM"), (3, 1)),
        (Rest(4, ""), (4, 1)),
        (Rest(2, "other"), (2, None)),
    ],
    ids=repr,
)
def test_location_becomes_line_and_column(place: ErrorLocation | None, position: tuple[int, int | None] | None):
    assert position_of(place, TEXT) == (None if position is None else Position(*position))


def test_ambiguous_location_is_not_guessed():
    twice = "a\nx, x"
    assert position_of(ErrorExcerpt(2, "...x", 3), twice) == Position(2, None)
    assert position_of(Rest(2, "x"), "x, y\nx, y") == Position(2, 1)
    assert position_of(Rest(2, "x,"), "x, y\nx, x, y") == Position(2, None)


def test_screen_columns_account_for_wide_combining_and_control_characters():
    line = "中\té́x"
    assert position_of(ErrorExcerpt(1, line, 3, SCREEN), line) == Position(1, line.index("x") + 1)


@pytest.mark.parametrize("joined", ["👨\u200d👩", "👍🏽", "🇩🇪", "☺\ufe0f", "नि", "กำ", "\xad"])
def test_width_of_joined_characters_is_not_guessed(joined: str):
    line = f"'{joined}', x"
    assert position_of(ErrorExcerpt(1, line, 6, SCREEN), line) == Position(1, None)
    assert position_of(ErrorExcerpt(1, line, 0, SCREEN), line) == Position(1, 1)


def test_position_shifts_with_a_prefix():
    assert without_prefix(Position(1, 9), "EXPLAIN ") == Position(1, 1)
    assert without_prefix(Position(1, 8), "EXPLAIN ") is None
    assert without_prefix(Position(2, 3), "EXPLAIN ") == Position(2, 3)
    assert without_prefix(None, "EXPLAIN ") is None
    assert after_prefix(Position(1, 3), "-- a\n  ") == Position(2, 5)
    assert after_prefix(Position(2, 3), "-- a\n  ") == Position(3, 3)
    assert after_prefix(Position(1, None), "-- a\n") == Position(2, None)
    assert after_prefix(None, "-- a\n") is None


def test_position_lookup_is_linear_in_the_text():
    text = "x\n" * 4_000_000

    def look() -> None:
        assert position_of(Character(len(text)), text) == Position(4_000_001, 1)
        assert position_of(LineColumn(4_000_000, 1), text) == Position(4_000_000, 1)
        assert position_of(Rest(4_000_000, "x\n"), text) == Position(4_000_000, 1)
        assert position_of(LineColumn(1, 8_000_001, UTF16), "😀" * 4_000_000) == Position(1, 4_000_001)

    # The lookup blocks the event loop; a loop over the characters would take at least four seconds.
    assert any(processor_s(look) < 2 for _ in range(TRIES))
