"""The OpenAPI document describes exactly the error codes that the program can return."""

import re
from pathlib import Path
from typing import Any

import pytest
from scripts.api_texts import error_codes, statuses_by_code, texts
from tests.openapi.test_completeness import DOCUMENT

from queryserver import errors
from queryserver.api.errors import STATUS
from queryserver.connectors.options import OptionsRefused
from queryserver.errors import base, files, statements
from queryserver.errors.base import KINDS, ConfigurationError, QueryServerError

SOURCE = Path(__file__).parents[2] / "src" / "queryserver"
# Matches error codes that the source contains outside error classes: in responses, outcomes, and refused downloads.
_WRITTEN = re.compile(
    r"""["']code["']:\s*["']([a-z_]+)["']"""
    r"""|\b(?:error_)?code=["']([a-z_]+)["']"""
    r"""|\b(?:failure|answer|_of_importer)\(\s*\d{3},\s*["']([a-z_]+)["']"""
    r"""|\bDownloadRefused\(\s*["']([a-z_]+)["']"""
    r"""|StatementState\.\w+: \(-?\d+, ["']([a-z_]+)["']\)"""
    r"""|\(["'](?!queryserver_)([a-z_]+)["'], ["'][A-Z][^"']*\.["']\)"""
    r"""|errors\.\w+: \(\d{3}, ["']([a-z_]+)["']\)"""
)

# Codes with several statuses. The importer returns 400 for invalid files and targets. Statement outcomes are returned
# with 200.
SEVERAL_STATUSES = {
    "connector_not_found": {400, 404},
    "file_too_large": {400, 413},
    "insufficient_storage": {200, 507},
    "not_supported": {400, 501},
    "operation_not_found": {200, 404},
    "permission_denied": {200, 400, 403},
    "quota_exceeded": {400, 409, 429},
    "row_too_large": {200, 413},
}
# Codes that no response contains. The base class of 401 errors is returned without a code, and the other two errors are
# returned as internal errors.
UNDOCUMENTED = {"configuration_error", "not_authenticated", "schema_mismatch"}


@pytest.fixture
def listed() -> list[dict[str, Any]]:
    return DOCUMENT["x-error-codes"]


def written_codes() -> set[str]:
    # Class headers are removed, because they contain the codes of error classes.
    texts_of_files = [re.sub(r"(?m)^class .*", "", file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")]
    return {code for text in texts_of_files for found in _WRITTEN.findall(text) for code in found if code}


@pytest.mark.platform(101)
def test_explained_error_codes_match_the_program(listed: list[dict[str, Any]]):
    known = {one["code"] for one in listed}
    assert len(known) == len(listed)
    written = written_codes()
    assert {"method_not_allowed", "no_result_set", "statement_timeout", "outcome_unknown", "not_ready"} <= written
    assert known == set(statuses_by_code()) | written


def test_each_meaning_is_a_sentence_and_each_code_has_a_status(listed: list[dict[str, Any]]):
    for one in listed:
        assert one.keys() == {"code", "http", "meaning"}
        assert re.fullmatch(r"[A-Z`][^\n]{15,}\.", one["meaning"]), one
        assert len(one["meaning"].split()) >= 4, one
        assert one["http"], one
        assert set(one["http"]) <= {200, *texts().words["failures"]}, one
    meanings = [one["meaning"] for one in listed]
    assert len(set(meanings)) == len(meanings)


def test_statuses_match_the_error_classes():
    found = {one["code"]: one["http"] for one in error_codes(texts().codes)}
    assert found["quota_exceeded"] == [400, 409, 429]
    assert found["engine_unavailable"] == [200, 409, 503]
    assert found["engine_error"] == [200, 409]
    assert found["expired"] == [200, 410]
    assert found["internal_error"] == [500]


def test_internal_codes_are_omitted_with_all_their_classes():
    assert issubclass(OptionsRefused, ConfigurationError)
    assert not {"configuration_error", "schema_mismatch"} & statuses_by_code().keys()


def test_failure_examples_use_listed_codes():
    failures = texts().words["failures"]
    codes = {one["code"]: one["http"] for one in error_codes(texts().codes)}
    for status, example in failures.items():
        if example["code"]:
            assert status in codes[example["code"]], status


def test_guide_has_its_sections_and_names_only_existing_calls():
    guide = DOCUMENT["info"]["description"]
    assert re.findall(r"^## (.+)$", guide, re.MULTILINE) == [
        "First steps", "Conventions", "Failures", "Limits", "Big numbers", "Time limits",
    ]  # fmt: skip
    assert not re.search(r"Contract|Spec §|docs/", guide)
    paths = {f"{method.upper()} {path}" for path, calls in DOCUMENT["paths"].items() for method in calls}
    named = set(re.findall(r"`((?:GET|POST) /[^`?]*)", guide))
    assert named
    assert named <= paths
    codes = {one["code"] for one in DOCUMENT["x-error-codes"]}
    assert {"quota_exceeded", "statement_timeout", "expired"} <= codes & set(re.findall(r"`([a-z_]+)`", guide))


def error_classes() -> list[type[QueryServerError]]:
    """Return the classes of the error hierarchy, in the order of their modules."""
    return [
        value
        for module in (base, files, statements)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, QueryServerError) and value.__module__ == module.__name__
    ]


def test_no_error_name_is_defined_twice():
    for module in (base, files, statements):
        for name, value in vars(module).items():
            if not name.startswith("_"):
                assert getattr(errors, name) is value, f"{module.__name__}.{name}"


def test_docstring_of_the_package_lists_every_error_class():
    assert errors.__doc__ is not None
    tree = errors.__doc__.partition("QueryServerError\n")[2]
    assert set(re.findall(r"[A-Z]\w+", tree)) == {error.__name__ for error in error_classes()} - {"QueryServerError"}


def test_each_error_code_is_documented_and_has_one_status():
    statuses: dict[str, set[int]] = {}
    for code, error in [*((error.code, error) for error in error_classes()), *KINDS]:
        status = next(STATUS[parent] for parent in error.__mro__ if parent in STATUS)
        statuses.setdefault(code, set()).add(status)
    assert statuses.keys() - texts().codes.keys() == UNDOCUMENTED
    assert {code: found for code, found in statuses.items() if len(found) > 1} == SEVERAL_STATUSES
