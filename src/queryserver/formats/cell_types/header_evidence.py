"""How a first cell differs from the text below it (Contract importer 11.5): language does not count."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

_FEWEST = 3
"""Cells below: of fewer, nothing is a rule."""
_MOST = 0.9
"""The share of cells that follow a rule."""
_CHANCE = 4
"""So many different cells may be alike by chance."""
_WORDS = re.compile(r"(?=.{4})[^\W\d_]+(?:[ -][^\W\d_]+)*")
_UPPER_OF_TWO = re.compile(r"[^\W\d_]{2}")
_SIGNS = " @.-/:,&+"
_FEWEST_REPEATED = 4
_REPEATED_SHARE = 0.5


def evidence(header: str, cells: Sequence[str]) -> float:
    """How much the form of a column of text speaks for a name above it (above 0) or against it.

    `cells` have values, without blanks at their ends; `header` is none of them.
    """
    found = _length(header, cells)
    if len(cells) < _FEWEST:
        return found
    found += _case(header, cells) + _characters(header, cells) + _repetition(cells)
    return found


def _length(header: str, cells: Sequence[str]) -> float:
    lengths = [len(cell) for cell in cells]
    shortest, longest = min(lengths), max(lengths)
    if len(cells) > 1 and shortest == longest:
        if len(header) == shortest:
            return -0.5
        # A few words of one length are chance, codes are not.
        return 0.2 if len(set(cells)) <= _CHANCE and all(map(_are_words, cells)) else 0.5
    if len(cells) < _FEWEST or shortest <= len(header) <= longest:
        return 0.0
    spread = max(longest - shortest, 1)
    far = max(len(header) - longest, shortest - len(header)) / spread
    return 0.5 if far >= 0.5 and len(cells) > _CHANCE else 0.25


def _are_words(cell: str) -> bool:
    return _WORDS.fullmatch(cell) is not None and cell != cell.upper()


def _case(header: str, cells: Sequence[str]) -> float:
    styles = Counter(filter(None, map(_style, cells)))
    own = _style(header)
    if own is None or not styles or styles.total() < _FEWEST:
        return 0.0
    style, count = styles.most_common(1)[0]
    if count < _MOST * styles.total():
        return 0.0
    if own == style:
        return -0.1
    return 0.25 if "mixed" in {own, style} else 0.75


def _style(cell: str) -> str | None:
    """How the letters are written; None: in a script without cases, or a single letter."""
    if not _UPPER_OF_TWO.search(cell) or cell.lower() == cell.upper():
        return None
    if cell == cell.lower():
        return "lower"
    if cell == cell.upper():
        return "upper"
    return "title" if cell[0].isupper() or not cell[0].isalpha() else "mixed"


def _characters(header: str, cells: Sequence[str]) -> float:
    """Digits, signs and letters of another script that are in most cells and not in the header, or only there."""
    found = 0.0
    if _share(cells, _has_digit) >= _MOST and not _has_digit(header):
        found += 0.75
    elif any(_share(cells, lambda cell, sign=sign: sign in cell) >= _MOST and sign not in header for sign in _SIGNS):
        found += 0.5
    if _share(cells, _is_foreign) >= _MOST and not _is_foreign(header):
        found += 0.75
    if "_" in header and _share(cells, lambda cell: "_" in cell) == 0:
        found += 0.5
    return found


def _has_digit(cell: str) -> bool:
    return any(character.isdigit() for character in cell)


def _is_foreign(cell: str) -> bool:
    """Whether it has letters of another script than Latin."""
    return any(character.isalpha() and character > "\u024f" for character in cell)


def _share(cells: Sequence[str], rule: Callable[[str], bool]) -> float:
    return sum(map(rule, cells)) / len(cells)


def _repetition(cells: Sequence[str]) -> float:
    """A value of a column of few values comes again: what comes once, above all of them, is none."""
    if len(cells) < _FEWEST_REPEATED:
        return 0.0
    once = sum(count == 1 for count in Counter(cells).values())
    distinct = len(set(cells))
    if distinct > _REPEATED_SHARE * len(cells):
        return 0.0
    return 0.75 if once == 0 else 0.5 if once <= 0.1 * len(cells) else 0.25
