"""What all tests share. The fixtures themselves live in `tests/fixtures`, one file per subject."""

from collections.abc import Sequence

import pytest
from hypothesis import settings

# A slow moment of the machine is no fault of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

pytest_plugins = ["tests.fixtures.database", "tests.fixtures.engines", "tests.fixtures.logs"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        default=None,
        metavar="NAME",
        help="run only the tests that need the real engine NAME; `all` for every engine (make test-engines)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `engine(name)` run when their engine is asked for, and then nothing else runs."""
    wanted = config.getoption("--engine")
    chosen = [item for item in items if _is_wanted(item, wanted)]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=_without(items, chosen))
        items[:] = chosen


def _is_wanted(item: pytest.Item, wanted: str | None) -> bool:
    engines = {mark.args[0] for mark in item.iter_markers("engine")}
    if wanted is None:
        return not engines
    return bool(engines) if wanted == "all" else wanted in engines


def _without(items: Sequence[pytest.Item], chosen: Sequence[pytest.Item]) -> list[pytest.Item]:
    kept = set(chosen)
    return [item for item in items if item not in kept]
