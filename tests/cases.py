"""Many cases of one rule as one test: an item costs pytest more than what most of them check."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any


def each(
    names: str | Sequence[str], values: Iterable[Any], *, ids: Callable[[Any], object] | Iterable[str] = repr
) -> Callable[[Any], Any]:
    """Runs a test for every value, as `pytest.mark.parametrize` would, in one item; names every case that fails.

    Fixtures are made once for all cases. Two of these decorators give all combinations.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    cases = [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values]
    given = None if callable(ids) else list(ids)

    def described(number: int) -> str:
        shown = [given[number]] if given else [str(ids(value)) for value in cases[number].values()]  # type: ignore[operator]
        return f"case: {', '.join(shown)}"

    return lambda test: _looped(test, cases, described)


def _looped(test: Any, cases: list[dict[str, Any]], described: Callable[[int], str]) -> Any:
    signature = inspect.signature(test)
    fixtures = [parameter for name, parameter in signature.parameters.items() if name not in cases[0]]
    assert len(fixtures) == len(signature.parameters) - len(cases[0]), f"{test.__name__} takes no {list(cases[0])}"

    @wraps(test)
    async def awaited(*args: Any, **given: Any) -> None:
        with every_case() as attempt:
            for number, case in enumerate(cases):
                with attempt(partial(described, number)):
                    await test(*args, **given, **case)

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
    tried, errors = 0, list[Exception]()

    @contextmanager
    def attempt(name: str | Callable[[], str]) -> Iterator[None]:
        nonlocal tried
        tried += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised with all others at the end
            error.add_note(name if isinstance(name, str) else name())
            errors.append(error)

    yield attempt
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {tried} cases", errors)
