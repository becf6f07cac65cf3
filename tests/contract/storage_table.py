"""The support table of docs/storage.md, from the marks of the contract suite; `make docs` writes it.

A row is what tests are marked with by `power`, a column a test class that says what it was tested with. A power whose
suite a class does not inherit is none of its store. No cell is written by hand.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.contract.storage_contract import StorageContract
from tests.contract.support_table import Footnotes, Suite, rendered, suite_of

POWERS = (
    "Read and write",
    "Files appear complete",
    "Nothing is replaced by accident",
    "Names",
    "Directories",
    "List",
    "Attributes",
    "Copy",
    "Delete",
    "Uploads in parts",
    "Rename in one step",
    "Trash",
    "Replication",
    "Content summary",
    "Permissions",
    "Owners",
    "Failures",
)
"""All names that the mark `power` may have, in the order of the table."""

_SUITES = Path(__file__).parent


def tested_stores() -> Iterator[type[StorageContract]]:
    """The test classes that say what they were tested with, by the name of their store."""
    found: dict[str, type[StorageContract]] = {}
    for file in sorted(_SUITES.glob("test_*_storage.py")):
        for member in vars(import_module(f"tests.contract.{file.stem}")).values():
            is_suite = isinstance(member, type) and issubclass(member, StorageContract)
            # What several suites have in common is none.
            if is_suite and member.tested_with and hasattr(member, "facts"):
                found[member.facts.name] = member
    return (found[name] for name in sorted(found, key=str.casefold))


def table() -> str:
    """The table in Markdown, with its notes."""
    notes = Footnotes()
    stores = list(tested_stores())
    suites = [suite_of(tests, "power", POWERS) for tests in stores]
    rows = [["", *(tests.facts.name for tests in stores)]]
    rows += [[power, *(_cell(suite, power, notes) for suite in suites)] for power in POWERS]
    rows.append(["**Tested with**", *(suite.peer for suite in suites)])
    return rendered(rows, notes)


def _cell(suite: Suite, power: str, notes: Footnotes) -> str:
    return (suite.verdict(power) or "no") + notes.mark(suite.reasons(power))
