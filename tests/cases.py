"""Many cases of one rule as one test: an item costs pytest more than what most of them check."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any


def each(
    names: str | Sequence[str], values: Iterable[Any], *, ids: Callable[[Any], object] = repr
) -> Callable[[Any], Any]:
    """Runs a test for every value, as `pytest.mark.parametrize` would, in one item; names every case that fails.

    Fixtures are made once for all cases. Two of these decorators give all combinations.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    cases = [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values]

    def described(case: dict[str, Any]) -> str:
        return "case: " + ", ".join(str(ids(value)) for value in case.values())

    return lambda test: _looped(test, cases, described)


def each_made(
    name: str,
    fixture: str,
    make: Callable[[Any, Any], Any],
    values: Iterable[Any],
    *,
    ids: Callable[[Any], object] = repr,
) -> Callable[[Any], Any]:
    """Like `each`, for an argument that is made of a fixture when its case begins: `make(fixture, value)`."""

    def looped(test: Any) -> Any:
        wanted = inspect.signature(test).parameters

        @wraps(test)
        async def run(*args: Any, _value: Any, **given: Any) -> None:
            source = given[fixture] if fixture in wanted else given.pop(fixture)
            await test(*args, **given, **{name: make(source, _value)})

        kept = [one for key, one in wanted.items() if key not in {name, fixture}]
        added = [inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD) for key in (fixture, "_value")]
        run.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
        return each("_value", values, ids=ids)(run)

    return looped


def _looped(test: Any, cases: list[dict[str, Any]], described: Callable[[dict[str, Any]], str]) -> Any:
    signature = inspect.signature(test)
    fixtures = [parameter for name, parameter in signature.parameters.items() if name not in cases[0]]
    assert len(fixtures) == len(signature.parameters) - len(cases[0]), f"{test.__name__} takes no {list(cases[0])}"

    @wraps(test)
    async def awaited(*args: Any, **given: Any) -> None:
        errors: list[Exception] = []
        for case in cases:
            try:
                await test(*args, **given, **case)
            except Exception as error:  # noqa: BLE001 - raised with all others at the end
                error.add_note(described(case))
                errors.append(error)
        _raise(test, cases, errors)

    @wraps(test)
    def called(*args: Any, **given: Any) -> None:
        errors: list[Exception] = []
        for case in cases:
            try:
                test(*args, **given, **case)
            except Exception as error:  # noqa: BLE001 - raised with all others at the end
                error.add_note(described(case))
                errors.append(error)
        _raise(test, cases, errors)

    looped: Any = awaited if inspect.iscoroutinefunction(test) else called
    # What pytest fills in.
    looped.__signature__ = signature.replace(parameters=fixtures)
    return looped


def _raise(test: Any, cases: Sequence[object], errors: list[Exception]) -> None:
    if errors:
        raise ExceptionGroup(f"{test.__name__}: {len(errors)} of {len(cases)} cases", errors)
