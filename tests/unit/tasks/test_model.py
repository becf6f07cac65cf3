"""The names and parameters of tasks (Contract platform 10.6)."""

from uuid import UUID

import pytest

from queryserver.errors.base import InvalidParameter, MissingParameter
from queryserver.statements.states import StatementState
from queryserver.tasks.model import PARAMETERS, STATEMENT_STATES, TaskName, TaskState, job_id, validate_task

ACCEPTED = [
    ("document_cleanup", {}, {"keep_days": 30}),
    ("document_cleanup", {"keep_days": None}, {"keep_days": 30}),
    ("document_cleanup", {"keep_days": "7"}, {"keep_days": 7}),
    ("result_cleanup", {}, {}),
    ("upload_cleanup", {}, {"older_than_minutes": 60}),
    ("upload_cleanup", {"older_than_minutes": 10}, {"older_than_minutes": 10}),
    ("close_queries", {}, {"age_in_days": 7}),
    ("close_queries", {"age_in_days": 0}, {"age_in_days": 0}),
    ("close_sessions", {"age_in_days": 3, "dialect": " hive "}, {"age_in_days": 3, "dialect": "hive"}),
    ("metadata_refresh", {"connector": 7}, {"connector": "7"}),
]

REFUSED = [
    ("vacuum", {}, "Unknown task: vacuum. Valid tasks: document_cleanup,"),
    ("statement", {}, "Unknown task: statement."),
    ("x" * 5000, {}, f"Unknown task: {'x' * 100}. Valid tasks"),
    ("document_cleanup", {"keep_days": 0}, "params.keep_days must be an integer from 1 to 36500."),
    ("document_cleanup", {"keep_days": True}, "params.keep_days must be an integer"),
    ("document_cleanup", {"keep_days": 1.5}, "params.keep_days must be an integer"),
    ("document_cleanup", {"keep_days": 10**30}, "params.keep_days must be an integer"),
    ("document_cleanup", {"days": 1}, "params.days is unknown: document_cleanup accepts keep_days."),
    ("result_cleanup", {"days": 1}, "params.days is unknown: result_cleanup accepts no parameters."),
    ("upload_cleanup", {"older_than_minutes": 9}, "params.older_than_minutes must be an integer from 10 to"),
    ("close_queries", {"age_in_days": -1}, "params.age_in_days must be an integer from 0 to 36500."),
    ("close_sessions", {"age_in_days": 1, "dialect": " "}, "params.dialect must be a string of 1 to 200 characters."),
    ("metadata_refresh", {"connector": ["hive"]}, "params.connector must be a string of 1 to 200 characters."),
]


@pytest.mark.parametrize(("name", "given", "params"), ACCEPTED)
def test_parameters_have_defaults_and_a_canonical_form(name: str, given: dict[str, object], params: dict[str, object]):
    task, found = validate_task(name, given)
    assert (task, found.model_dump()) == (name, params)
    # The stored parameters can be read back.
    assert validate_task(name, found.model_dump())[1] == found


@pytest.mark.parametrize(("name", "given", "text"), REFUSED)
def test_unknown_or_invalid_parameter_is_rejected_by_name(name: str, given: dict[str, object], text: str):
    with pytest.raises(InvalidParameter) as refused:
        validate_task(name, given)
    assert refused.value.message.startswith(text)


@pytest.mark.parametrize(
    ("given", "parameter"), [({"dialect": "hive"}, "age_in_days"), ({"age_in_days": 1}, "dialect")]
)
def test_close_sessions_requires_both_parameters(given: dict[str, object], parameter: str):
    with pytest.raises(MissingParameter, match=f"params.{parameter} is required"):
        validate_task("close_sessions", given)


def test_every_task_has_parameters_and_every_statement_state_a_task_state():
    assert set(PARAMETERS) == set(TaskName)
    assert set(STATEMENT_STATES) == set(TaskState)
    mapped = [state for states in STATEMENT_STATES.values() for state in states]
    assert sorted(mapped) == sorted(StatementState)


def test_job_id_contains_task_and_fence():
    assert job_id(UUID(int=7), 3) == "task:00000000-0000-0000-0000-000000000007:3"
