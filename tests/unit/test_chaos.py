"""The audit of `make chaos` finds every forbidden outcome."""

import pytest
from tests.chaos.audit import Audit, compare
from tests.chaos.clients import Entry


def faults(entry: Entry, record: dict[str, str | None] | None, times: int) -> list[str]:
    """Return the kinds of faults that the audit finds for one statement."""
    found = Audit()
    compare(found, entry, record, times)
    assert found.clean == (not any(found.faults.values()))
    return [name for name, cases in found.faults.items() if cases]


def told(state: str, *, kind: str = "insert", problem: str = "") -> Entry:
    """Return the client's log entry for a statement with the outcome that was reported to the client."""
    return Entry(kind, "ana", "t", operation="o", state=state, problems=[problem] if problem else [])


SUCCESS = {"state": "success", "error_code": None}
UNKNOWN = {"state": "failed", "error_code": "outcome_unknown"}
FAILED = {"state": "failed", "error_code": "engine_error"}
CANCELED = {"state": "canceled", "error_code": None}
AVAILABLE = {"state": "available", "error_code": None}


@pytest.mark.parametrize(
    ("entry", "record", "times"),
    [
        (told("success"), SUCCESS, 1),
        (told("failed"), UNKNOWN, 0),
        (told("failed"), UNKNOWN, 1),
        (told("failed"), FAILED, 0),
        (told("canceled", kind="cancel"), CANCELED, 0),
        (told("running"), SUCCESS, 1),
        (told("available", kind="page"), AVAILABLE, 0),
    ],
)
def test_permitted_outcome_is_not_a_fault(entry, record, times):
    assert faults(entry, record, times) == []


@pytest.mark.parametrize(
    ("entry", "record", "times", "fault"),
    [
        (told("success"), SUCCESS, 2, "twice"),
        (told("failed"), UNKNOWN, 2, "twice"),
        (told("success"), SUCCESS, 0, "missing"),
        (told("failed"), FAILED, 1, "contradicted"),
        (told("canceled", kind="cancel"), CANCELED, 1, "contradicted"),
        (told("failed", kind="page"), AVAILABLE, 0, "changed"),
        (told("success"), None, 1, "unknown"),
        (told("available", kind="page", problem="wrong content: 2 rows"), AVAILABLE, 0, "wrong"),
        (told("running", problem="gave up: check_status"), SUCCESS, 1, "given_up"),
    ],
)
def test_forbidden_outcome_is_found(entry, record, times, fault):
    assert fault in faults(entry, record, times)
