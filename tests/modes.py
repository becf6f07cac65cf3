"""Modes of a test run that differ from the default."""

TASK_SERVER = "TESTS_WITH_TASK_SERVER"
"""Environment variable that `--task-server` sets. If it is set, workers of a task server run the statements in
tests/api.
"""
