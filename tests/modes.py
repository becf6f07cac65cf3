"""How a test run differs from the usual one."""

TASK_SERVER = "TESTS_WITH_TASK_SERVER"
"""A variable that `--task-server` sets: the statements of tests/api run in workers."""
