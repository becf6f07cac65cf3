"""Many cases of one rule as one test: an item costs pytest more than what most of them check."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import pytest

FAILURES = (Exception, pytest.fail.Exception)


def each(names: str | Sequence[str], *values: Any, ids: Callable[[Any], object] = repr) -> Callable[[Any], Any]:
    """Runs a test for every value, as `pytest.mark.parametrize` would, in one item; names every case that fails.

    The values follow the names, or are in one list or other iterable. Fixtures are made once for all cases. Two of
    these decorators give all combinations.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    cases = values[0] if len(values) == 1 else values
    cases = [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in cases]

    def described(case: dict[str, Any]) -> str:
        return "case: " + ", ".join(str(ids(value)) for value in case.values())

    return lambda test: _looped(test, cases, described)


def _looped(test: Any, cases: list[dict[str, Any]], described: Callable[[dict[str, Any]], str]) -> Any:
    signature = inspect.signature(test)
    fixtures = [parameter for name, parameter in signature.parameters.items() if name not in cases[0]]
    assert len(fixtures) == len(signature.parameters) - len(cases[0]), f"{test.__name__} takes no {list(cases[0])}"

    @wraps(test)
    async def awaited(*args: Any, **given: Any) -> None:
        errors: list[BaseException] = []
        for case in cases:
            try:
                await test(*args, **given, **case)
            except FAILURES as error:
                error.add_note(described(case))
                errors.append(error)
        _raise(test, cases, errors)

    @wraps(test)
    def called(*args: Any, **given: Any) -> None:
        errors: list[BaseException] = []
        for case in cases:
            try:
                test(*args, **given, **case)
            except FAILURES as error:
                error.add_note(described(case))
                errors.append(error)
        _raise(test, cases, errors)

    looped: Any = awaited if inspect.iscoroutinefunction(test) else called
    # What pytest fills in.
    looped.__signature__ = signature.replace(parameters=fixtures)
    return looped


def _raise(test: Any, cases: Sequence[object], errors: list[BaseException]) -> None:
    if errors:
        raise BaseExceptionGroup(f"{test.__name__}: {len(errors)} of {len(cases)} cases", errors)
