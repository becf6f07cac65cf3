"""The support table of docs/storage.md, generated from the contract suite's marks by `make docs`.

A row is a `power` that tests are marked with; a column is a test class that declares its peer. A store lacks the powers
whose suites its class does not inherit. No cell is written by hand.
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
"""All permitted names of the mark `power`, in table order."""

_SUITES = Path(__file__).parent


def tested_stores() -> Iterator[type[StorageContract]]:
    """Yield the test classes that declare a peer, by store name."""
    found: dict[str, type[StorageContract]] = {}
    for file in sorted(_SUITES.glob("test_*_storage.py")):
        for member in vars(import_module(f"tests.contract.{file.stem}")).values():
            is_suite = isinstance(member, type) and issubclass(member, StorageContract)
            # Base classes shared by several suites are skipped.
            if is_suite and member.tested_with and hasattr(member, "facts"):
                found[member.facts.name] = member
    return (found[name] for name in sorted(found, key=str.casefold))


def table() -> str:
    """Return the table in Markdown, with its notes."""
    notes = Footnotes()
    stores = list(tested_stores())
    suites = [suite_of(tests, "power", POWERS) for tests in stores]
    rows = [["", *(tests.facts.name for tests in stores)]]
    rows += [[power, *(_cell(suite, power, notes) for suite in suites)] for power in POWERS]
    rows.append(["**Tested with**", *(suite.peer for suite in suites)])
    return rendered(rows, notes)


def _cell(suite: Suite, power: str, notes: Footnotes) -> str:
    return (suite.verdict(power) or "no") + notes.mark(suite.reasons(power))
