"""The support tables of the documentation say what the suites say."""

from scripts import document_engines, document_options, document_storage
from scripts.document_engines import CAPABILITIES, COLUMNS, table
from scripts.support_table import Page, Suite
from tests.cases import each
from tests.contract.test_signatures import CATALOG_TESTS, ENGINE_TESTS

from queryserver.connectors.engine_builders import BUILDERS


@each("page", document_engines.PAGE, document_options.PAGE, document_storage.PAGE)
def test_the_page_is_up_to_date(page: Page) -> None:
    written = page.target.read_text()
    assert written == page.document(written), "run make docs"


def test_every_tested_engine_has_a_column() -> None:
    shown = {column.tests for column in COLUMNS} | {"fake", "documented"}
    assert {file.split("_")[1] for file in (*ENGINE_TESTS, *CATALOG_TESTS)} == shown
    assert {column.interface for column in COLUMNS} == set(BUILDERS) == set(document_options.INTERFACES)


def test_no_row_is_without_any_test() -> None:
    rows = {row[0].removeprefix("| "): row[1:] for row in (line.split(" | ") for line in table().splitlines())}
    for name in CAPABILITIES:
        assert any(not cell.startswith(("no", "–")) for cell in rows[name]), name


@each(("failures", "verdict"), (((), ()), "yes"), (((), ("why",)), "part"), ((("why",), ("why",)), "no"), ((), ""))
def test_a_known_failure_shows_in_the_cell(failures: tuple[tuple[str, ...], ...], verdict: str) -> None:
    suite = Suite("peer", {"Run": {f"test_{number}": reasons for number, reasons in enumerate(failures)}})
    assert suite.verdict("Run") == verdict
    assert list(suite.reasons("Run")) == ["why" for reasons in failures if reasons]
