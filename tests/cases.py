"""Runs several cases within one test, for contract suites that mark a test as xfail until an adapter passes it.

All other tests use `pytest.mark.parametrize` or `subtests`. With these, pytest applies a strict xfail mark to each case
individually, so a single passing case would fail the test.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

FAILURES = (Exception, pytest.fail.Exception)
"""The exceptions that count as a failed case. `pytest.fail` and `pytest.raises` raise the second class, which is not a
subclass of Exception.
"""


@contextmanager
def every_case() -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Yield a function that returns a context manager for each named case. All cases run, and their failures are raised
    together at the end as one exception group.
    """
    tried, errors = 0, list[BaseException]()

    @contextmanager
    def attempt(name: str) -> Iterator[None]:
        nonlocal tried
        tried += 1
        try:
            yield
        except FAILURES as error:
            error.add_note(f"case: {name}")
            errors.append(error)

    yield attempt
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {tried} cases", errors)
