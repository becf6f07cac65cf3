"""Several cases within one test, for contract suites that mark a test as xfail while an adapter does not pass it.

Other tests use `pytest.mark.parametrize` or `subtests` for cases. There, pytest applies a strict xfail mark to each
case individually, so a single passing case would fail the test.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

FAILURES = (Exception, pytest.fail.Exception)
"""The second class is raised by `pytest.fail` and `pytest.raises`; it is not a subclass of Exception."""


@contextmanager
def every_case() -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Yield a factory of context managers for named cases. All cases run; the failures are raised together at the end,
    as one exception group.
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
