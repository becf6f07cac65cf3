"""What the generated support tables share: verdicts from the marks of test classes, numbered reasons."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Proved = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Row of the table to test to the reasons why it is known to fail."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What one test class, or one module of plain tests, proves against a peer."""

    peer: str
    proved: Proved

    def verdict(self, row: str) -> str:
        """`yes`, `part`, `no`, or nothing when no test is about it."""
        failing = [bool(reasons) for reasons in self.proved.get(row, {}).values()]
        if not failing:
            return ""
        return "no" if all(failing) else "part" if any(failing) else "yes"

    def reasons(self, row: str) -> Iterator[str]:
        """Why tests about it fail."""
        for reasons in self.proved.get(row, {}).values():
            yield from reasons


class Footnotes:
    """Reasons by number; the same reason has one number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, texts: Iterator[str]) -> str:
        """The numbers to put behind a cell."""
        numbers = dict.fromkeys(self._number(text) for text in texts)
        return "".join(f" [{number}]" for number in numbers)

    def _number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def suite_of(tests: type, mark: str, known: Sequence[str]) -> Suite:
    """What a class proves by its tests that carry `mark`; their names must be among the `known` ones."""
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
    """Why a test is known to fail there."""
    for declared, mark in getattr(tests, "known_failures", {}).items():
        if declared.partition("[")[0] == name:
            reason = mark.args[0] if mark.args else mark.kwargs["reason"]
            reason = re.sub(r" \(Contract [^)]*\)", "", reason)
            yield f"{reason[0].upper()}{reason[1:]} (`{mark.name}`)"


def names_in(marks: object, mark: str, known: Sequence[str]) -> list[str]:
    """The rows that marks of that name tell."""
    found = [one.args[0] for one in marks if one.name == mark]  # type: ignore[attr-defined]
    if unknown := set(found) - set(known):
        raise SystemExit(f"no rows of the table: {sorted(unknown)}")
    return found


def is_test(name: str) -> bool:
    """Whether pytest takes it for a test."""
    return name.startswith("test_")


def rendered(rows: Sequence[Sequence[str]], notes: Footnotes) -> str:
    """The table, its first row being the head, and the notes below it."""
    head, *body = rows
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
    return "\n".join([*lines, "", *(f"{number}. {text}." for number, text in enumerate(notes.texts, 1))])
