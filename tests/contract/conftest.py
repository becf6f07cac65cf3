"""Setup of the contract suites: facts become test parameters, and declared failures become strict xfail marks."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "tests.contract.built_engines",
    "tests.contract.catalog_basis",
    "tests.contract.catalog_contract",
    "tests.contract.catalog_names",
    "tests.contract.catalog_sampling",
    "tests.contract.engine_basis",
    "tests.contract.engine_breaks",
    "tests.contract.engine_contract",
    "tests.contract.engine_driving",
    "tests.contract.engine_faults",
    "tests.contract.engine_parameters",
    "tests.contract.engine_resuming",
    "tests.contract.engine_stopping",
    "tests.contract.loading_basis",
    "tests.contract.loading_contract",
    "tests.contract.mariadb_basis",
    "tests.contract.postgresql_basis",
    "tests.contract.read_only_contract",
    "tests.contract.storage_basis",
    "tests.contract.storage_contract",
    "tests.contract.storage_escapes",
    "tests.contract.storage_listing",
    "tests.contract.storage_parts",
    "tests.contract.storage_powers",
    "tests.contract.storage_writing",
)

_EXPECTATIONS = frozenset({"notimpl", "notyet", "never"})


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a PEM certificate authority the only trusted one until the test ends."""

    def only(authority: str) -> None:
        file = tmp_path / "authorities.pem"
        file.write_text(authority)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))

    return only


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn `known_failures` into strict xfail marks.

    An unknown test, an unknown mark or a mark without a reason aborts the run.
    """
    for item in items:
        declared = _known_failures(item)
        if (mark := declared.get(_test_name(item))) is not None:
            item.add_marker(mark)
        for found in item.iter_markers():
            if found.name in _EXPECTATIONS:
                item.add_marker(pytest.mark.xfail(reason=f"{found.name}: {_reason(item, found)}", strict=True))


def _known_failures(item: pytest.Item) -> Mapping[str, pytest.MarkDecorator]:
    owner = getattr(item, "cls", None)
    declared: Mapping[str, pytest.MarkDecorator] = getattr(owner, "known_failures", {})
    for name, mark in declared.items():
        if not hasattr(owner, name.partition("[")[0]):
            raise pytest.UsageError(f"{item.nodeid}: known_failures names {name}, which is no test")
        if mark.name not in _EXPECTATIONS:
            raise pytest.UsageError(f"{item.nodeid}: {name} is marked {mark.name}, which is no expectation")
    return declared


def _test_name(item: pytest.Item) -> str:
    """Return the test name, without parameters if a mark applies to all parameters."""
    declared = getattr(getattr(item, "cls", None), "known_failures", {})
    return item.name if item.name in declared else getattr(item, "originalname", item.name)


def _reason(item: pytest.Item, mark: pytest.Mark) -> str:
    reason = mark.args[0] if mark.args else mark.kwargs.get("reason", "")
    if not reason:
        raise pytest.UsageError(f"{item.nodeid}: the mark {mark.name} needs its reason")
    return reason
