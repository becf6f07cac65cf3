"""Many cases of one rule as one test: an item costs pytest more than what most of them check."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any

import pytest

FAILURES = (Exception, pytest.fail.Exception)
"""`pytest.raises` that saw nothing, and `pytest.fail`, raise the second, which is no Exception."""


def each(
    names: str | Sequence[str], *values: Any, ids: Callable[[Any], object] | Iterable[str] = repr, at_once: bool = False
) -> Callable[[Any], Any]:
    """Runs a test for every value, as `pytest.mark.parametrize` would, in one item; names every case that fails.

    The values follow the names, or are in one list or other iterable. Fixtures are made once for all cases. Two of
    these decorators give all combinations. `at_once` begins all cases before any has ended: for those that mostly wait.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    chosen = values[0] if len(values) == 1 else values
    cases = [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in chosen]
    given = None if callable(ids) else list(ids)

    def described(number: int) -> str:
        shown = [given[number]] if given else [str(ids(value)) for value in cases[number].values()]  # type: ignore[operator]
        return f"case: {', '.join(shown)}"

    return lambda test: _looped(test, cases, described, at_once=at_once)


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
        return each("_value", list(values), ids=ids)(run)

    return looped


def _looped(test: Any, cases: list[dict[str, Any]], described: Callable[[int], str], *, at_once: bool) -> Any:
    signature = inspect.signature(test)
    fixtures = [parameter for name, parameter in signature.parameters.items() if name not in cases[0]]
    assert len(fixtures) == len(signature.parameters) - len(cases[0]), f"{test.__name__} takes no {list(cases[0])}"

    @wraps(test)
    async def awaited(*args: Any, **given: Any) -> None:
        with every_case() as attempt:

            async def one(number: int, case: dict[str, Any]) -> None:
                with attempt(partial(described, number)):
                    await test(*args, **given, **case)

            if at_once:
                async with asyncio.TaskGroup() as group:
                    for number, case in enumerate(cases):
                        group.create_task(one(number, case))
            else:
                for number, case in enumerate(cases):
                    await one(number, case)

    @wraps(test)
    def called(*args: Any, **given: Any) -> None:
        with every_case() as attempt:
            for number, case in enumerate(cases):
                with attempt(partial(described, number)):
                    test(*args, **given, **case)

    looped: Any = awaited if inspect.iscoroutinefunction(test) else called
    # What pytest fills in.
    looped.__signature__ = signature.replace(parameters=fixtures)
    return looped


@contextmanager
def every_case() -> Iterator[Callable[[str | Callable[[], str]], AbstractContextManager[None]]]:
    """For cases that only the running test knows: a context for each, by name; at the end all failures are raised."""
    tried, errors = 0, list[BaseException]()

    @contextmanager
    def attempt(name: str | Callable[[], str]) -> Iterator[None]:
        nonlocal tried
        tried += 1
        try:
            yield
        except FAILURES as error:
            error.add_note(name if isinstance(name, str) else name())
            errors.append(error)

    yield attempt
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {tried} cases", errors)
