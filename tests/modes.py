"""Ways in which a test run can differ from the usual one."""

TASK_SERVER = "TESTS_WITH_TASK_SERVER"
"""Environment variable set by `--task-server`, with which workers run the statements of tests/api."""
