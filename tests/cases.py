"""Cases that are judged as one test: the contract suites mark a test that an adapter does not pass yet as xfail.

Elsewhere cases are `pytest.mark.parametrize` or `subtests`. pytest applies a strict xfail mark to each of these by
itself, so a single case that passes would fail the test.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

FAILURES = (Exception, pytest.fail.Exception)
"""The second is what `pytest.fail` and `pytest.raises` raise; it is no Exception."""


@contextmanager
def every_case() -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """A context for each case, by its name. Runs all of them, and raises all failures at the end as one group."""
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
