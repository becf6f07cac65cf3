"""Write the support table of docs/storage.md from the marks of the contract suite; --check: exit 1 when it is stale.

A row is what tests are marked with by `power`, a column a test class that says what it was tested with. A power whose
suite a class does not inherit is none of its store. No cell is written by hand.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from scripts.support_table import Footnotes, Page, Suite, rendered, suite_of  # noqa: E402 the project is no installed package
from tests.contract.storage_contract import StorageContract  # noqa: E402 as above

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

_SUITES = PROJECT / "tests" / "contract"


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
    """The part of the page between the two comments."""
    notes = Footnotes()
    stores = list(tested_stores())
    suites = [suite_of(tests, "power", POWERS) for tests in stores]
    rows = [["", *(tests.facts.name for tests in stores)]]
    rows += [[power, *(_cell(suite, power, notes) for suite in suites)] for power in POWERS]
    rows.append(["**Tested with**", *(suite.peer for suite in suites)])
    return rendered(rows, notes)


def _cell(suite: Suite, power: str, notes: Footnotes) -> str:
    return (suite.verdict(power) or "no") + notes.mark(suite.reasons(power))


PAGE = Page(
    PROJECT / "docs" / "storage.md",
    "<!-- support table: made by make docs -->",
    "<!-- end of the support table -->",
    table,
)


if __name__ == "__main__":
    sys.exit(PAGE.main())
