"""Pytest configuration for all tests. The shared fixtures are in `tests/fixtures`, one file per subject."""

import atexit
import gc
import os
import re
import signal
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from tests.examples import QUICK
from tests.modes import TASK_SERVER
from tests.rewriting import rewrite_assertions

settings.load_profile(QUICK)

_SLOW_S = 300
"""Time limit of slow tests without a limit of their own. The limit of other tests is in `pyproject.toml`."""
_LONG_S = 600
_ID_CHARACTERS = 50

pytest_plugins = [
    "tests.fixtures.clocks",
    "tests.fixtures.database",
    "tests.fixtures.engines",
    "tests.fixtures.logs",
    "tests.fixtures.passwords",
    "tests.fixtures.processes",
    "tests.fixtures.valkey",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        default=None,
        metavar="NAME",
        help="run only the tests that need the real engine NAME; `all` for every engine (make test-engines)",
    )
    parser.addoption(
        "--task-server",
        action="store_true",
        help="run the statements of tests/api in workers that a Valkey wakes (make test-fleet)",
    )
    parser.addoption(
        "--photographs",
        default=None,
        metavar="DIR",
        help="save the screenshots of the console in this folder (make test-engines E=chromium)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Apply the option `--task-server`, and replace the SIGINT handler. The editor tests must also pass with this
    option (Contract platform, item 102).
    """
    if config.getoption("--task-server"):
        os.environ[TASK_SERVER] = "1"
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT like the default handler.

    asyncio replaces the default handler during each test, and `signal` then formats the test's task as a string. That
    takes milliseconds because a test holds many objects. asyncio leaves this handler in place, so Ctrl-C interrupts a
    test's event loop and does not only cancel its task.
    """
    signal.default_int_handler(number, frame)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Rewrite the assertions of all test files once before the workers start. Otherwise each worker would spend 20 s of
    CPU time on new test files.
    """
    rewrite_assertions(config.rootpath / "tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector while tests are collected. It would repeatedly visit all collected objects, which
    takes 40 % of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Otherwise, extension modules report at exit that objects were never freed.
        atexit.register(gc.unfreeze)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore test modules whose tests will not run, so that they are not imported. Whether they run depends on
    `--engine`.
    """
    if not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if config.getoption("--engine") is None:
        return True if _NEEDS_ENGINES.search(text) else None
    return None if "mark.engine(" in text else True


_NEEDS_ENGINES = re.compile(r"^pytestmark = .*\bmark\.engine\(", re.MULTILINE)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Do not collect classes and functions that need an engine unless `--engine` is given."""
    marks = getattr(obj, "pytestmark", ())
    needs_engines = isinstance(marks, list) and any(mark.name == "engine" for mark in marks)
    return [] if needs_engines and collector.config.getoption("--engine") is None else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests marked `engine(name)` only if `--engine` requests their engine; no other tests run in that case.

    Slow tests get more time, because they take several times as long on a busy machine. If no engine is requested, long
    tests run first, because a long test at the end would run alone while all other cores are idle.
    """
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_S))
    wanted = config.getoption("--engine")
    if wanted is None:
        items.sort(key=lambda item: _time_limit_s(item) < _LONG_S)
    chosen = [item for item in items if _is_wanted(item, wanted)]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=_without(items, chosen))
        items[:] = chosen


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Make ids readable and easy to type after `-k`: keep short literals, and truncate long strings.

    Lambdas, long bytes and non-ASCII bytes get the argument's name and a number, because ids must be the same in all
    pytest-xdist processes. If this hook returns None, pytest chooses the id.
    """
    if isinstance(val, str):
        return f"{ascii(val[:_ID_CHARACTERS])[1:-1]}..." if len(val) > _ID_CHARACTERS else None
    if isinstance(val, bytes):
        return None if len(val) <= _ID_CHARACTERS and val.isascii() else argname
    if getattr(val, "__name__", None) == "<lambda>":
        return argname
    if isinstance(val, list | tuple | dict) and _is_literal(val):
        written = ascii(val)
        return written if len(written) <= _ID_CHARACTERS else argname
    return None


def _is_literal(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_literal(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return all(_is_literal(one) for one in value)
    return value is None or type(value) in {bool, int, float, str, bytes}


def _time_limit_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return mark.args[0] if mark else 0


def _is_wanted(item: pytest.Item, wanted: str | None) -> bool:
    engines = {mark.args[0] for mark in item.iter_markers("engine")}
    if wanted is None:
        return not engines
    return bool(engines) if wanted == "all" else wanted in engines


def _without(items: Sequence[pytest.Item], chosen: Sequence[pytest.Item]) -> list[pytest.Item]:
    kept = set(chosen)
    return [item for item in items if item not in kept]
