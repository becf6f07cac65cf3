"""Several cases in one test, because the contract suites mark a test that an adapter does not pass yet as xfail.

Other tests use `pytest.mark.parametrize` or `subtests` for cases. pytest applies a strict xfail mark to each of these
individually, so a single passing case would fail the test.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

FAILURES = (Exception, pytest.fail.Exception)
"""`pytest.fail` and `pytest.raises` raise the second one, which is not an Exception."""


@contextmanager
def every_case() -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Yield a context manager factory for named cases. Runs all cases, and finally raises all failures as one group."""
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
