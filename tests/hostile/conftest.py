"""Tests with hostile users. Tests in the files listed below take seconds; all others take minutes and are marked
slow.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUICK = {"test_connections.py", "test_fairness.py", "test_network.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name not in QUICK:
            item.add_marker(pytest.mark.slow)
