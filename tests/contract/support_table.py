"""Shared code of the generated support tables: verdicts from test class marks, numbered reasons."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Proved = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Maps a table row to its tests, and each test to the reasons for its known failures."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What one test class, or one module of plain tests, proves against a peer."""

    peer: str
    proved: Proved

    def verdict(self, row: str) -> str:
        """Return `yes`, `part` or `no`, or an empty text if no test covers the row."""
        failing = [bool(reasons) for reasons in self.proved.get(row, {}).values()]
        if not failing:
            return ""
        return "no" if all(failing) else "part" if any(failing) else "yes"

    def reasons(self, row: str) -> Iterator[str]:
        """Yield why tests of the row fail."""
        for reasons in self.proved.get(row, {}).values():
            yield from reasons


class Footnotes:
    """Numbered reasons; equal reasons share a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, texts: Iterator[str]) -> str:
        """Return the note numbers to append to a cell."""
        numbers = dict.fromkeys(self._number(text) for text in texts)
        return "".join(f" [{number}]" for number in numbers)

    def _number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def suite_of(tests: type, mark: str, known: Sequence[str]) -> Suite:
    """Return what a class proves through its tests with `mark`, whose names must be among the `known` ones."""
    proved: dict[str, dict[str, tuple[str, ...]]] = {}
    for owner in tests.__mro__:
        whole = names_in(vars(owner).get("pytestmark", ()), mark, known)
        for name, member in vars(owner).items():
            if is_test(name):
                for row in (*whole, *names_in(getattr(member, "pytestmark", ()), mark, known)):
                    proved.setdefault(row, {})[name] = tuple(reasons_of(tests, name))
    if not tests.tested_with:  # type: ignore[attr-defined]
        raise SystemExit(f"{tests.__module__}.{tests.__name__} does not say what it was tested with")
    return Suite(tests.tested_with, proved)  # type: ignore[attr-defined]


def reasons_of(tests: type, name: str) -> Iterator[str]:
    """Yield why a test is known to fail in the class."""
    for declared, mark in getattr(tests, "known_failures", {}).items():
        if declared.partition("[")[0] == name:
            reason = mark.args[0] if mark.args else mark.kwargs["reason"]
            reason = re.sub(r" \(Contract [^)]*\)", "", reason)
            yield f"{reason[0].upper()}{reason[1:]} (`{mark.name}`)"


def names_in(marks: object, mark: str, known: Sequence[str]) -> list[str]:
    """Return the table rows that marks of the given name declare."""
    found = [one.args[0] for one in marks if one.name == mark]  # type: ignore[attr-defined]
    if unknown := set(found) - set(known):
        raise SystemExit(f"no rows of the table: {sorted(unknown)}")
    return found


def is_test(name: str) -> bool:
    """Return whether pytest collects the name as a test."""
    return name.startswith("test_")


def rendered(rows: Sequence[Sequence[str]], notes: Footnotes) -> str:
    """Render the table, whose first row is the header, and the notes below it."""
    head, *body = rows
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
    return "\n".join([*lines, "", *(f"{number}. {text}." for number, text in enumerate(notes.texts, 1))])
