"""Shared code for the generated support tables, which derives cells from test marks and numbers the footnotes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Proved = Mapping[str, Mapping[str, tuple[str, ...]]]
"""For each table row, its tests; for each test, the reasons for its known failures."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The marked tests of one class, or of one module of plain tests, and the server that they run on."""

    peer: str
    proved: Proved

    def verdict(self, row: str) -> str:
        """Return `yes`, `part` or `no`; an empty string if the row has no tests."""
        failing = [bool(reasons) for reasons in self.proved.get(row, {}).values()]
        if not failing:
            return ""
        return "no" if all(failing) else "part" if any(failing) else "yes"

    def reasons(self, row: str) -> Iterator[str]:
        """Yield the reasons for the known failures in a row."""
        for reasons in self.proved.get(row, {}).values():
            yield from reasons


class Footnotes:
    """The footnotes of a table, which are numbered reasons. Identical reasons share a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, texts: Iterator[str]) -> str:
        """Return the references to footnotes that follow the content of a cell."""
        numbers = dict.fromkeys(self._number(text) for text in texts)
        return "".join(f" [{number}]" for number in numbers)

    def _number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def suite_of(tests: type, mark: str, known: Sequence[str]) -> Suite:
    """Collect the tests of a class that carry `mark`. Raises SystemExit for mark arguments that are not in `known`."""
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
    """Yield the reasons why a test of the class is known to fail."""
    for declared, mark in getattr(tests, "known_failures", {}).items():
        if declared.partition("[")[0] == name:
            reason = mark.args[0] if mark.args else mark.kwargs["reason"]
            reason = re.sub(r" \(Contract [^)]*\)", "", reason)
            yield f"{reason[0].upper()}{reason[1:]} (`{mark.name}`)"


def names_in(marks: object, mark: str, known: Sequence[str]) -> list[str]:
    """Return the table rows that the marks called `mark` name. Raises SystemExit for rows that are not in `known`."""
    found = [one.args[0] for one in marks if one.name == mark]  # type: ignore[attr-defined]
    if unknown := set(found) - set(known):
        raise SystemExit(f"no rows of the table: {sorted(unknown)}")
    return found


def is_test(name: str) -> bool:
    """Return whether pytest would collect a function of this name."""
    return name.startswith("test_")


def rendered(rows: Sequence[Sequence[str]], notes: Footnotes) -> str:
    """Return the Markdown table, followed by its footnotes. The first row is the header."""
    head, *body = rows
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
    return "\n".join([*lines, "", *(f"{number}. {text}." for number, text in enumerate(notes.texts, 1))])
