"""Answers that are kept: how many, and who makes them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from queryserver.imports.preview import KeptAnswers


def kept(max_bytes: int = 40) -> KeptAnswers[str]:
    return KeptAnswers(len, max_bytes=max_bytes)


class Maker:
    """Makes an answer, and counts how often."""

    def __init__(self, answer: str = "ten bytes.") -> None:
        self.answer = answer
        self.made = 0

    async def __call__(self) -> str:
        self.made += 1
        await asyncio.sleep(0)
        return self.answer


async def test_the_answer_that_was_asked_for_longest_ago_makes_room():
    answers, makers = kept(), {name: Maker() for name in "abcde"}
    for name in "abcd":
        await answers.get(name, makers[name])
    await answers.get("a", makers["a"])
    await answers.get("e", makers["e"])
    for name in "acde":
        await answers.get(name, makers[name])
    assert [makers[name].made for name in "acde"] == [1, 1, 1, 1]
    await answers.get("b", makers["b"])
    assert makers["b"].made == 2


async def test_large_answers_are_not_kept():
    answers, maker = kept(), Maker("x" * 11)
    assert await answers.get("a", maker) == await answers.get("a", maker)
    assert maker.made == 2


async def test_without_a_key_nothing_is_kept():
    answers, maker = kept(), Maker()
    await answers.get(None, maker)
    await answers.get(None, maker)
    assert maker.made == 2


async def test_the_next_caller_tries_when_the_first_gives_up():
    answers, maker = kept(), Maker()
    begun = asyncio.Event()

    async def never() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    first = asyncio.create_task(answers.get("a", never))
    await begun.wait()
    second = asyncio.create_task(answers.get("a", maker))
    await asyncio.sleep(0)
    assert not maker.made
    first.cancel()
    assert await second == maker.answer


async def test_an_error_is_the_callers_own():
    answers, maker = kept(), Maker()

    async def broken() -> str:
        raise ValueError

    work: list[Callable[[], Awaitable[str]]] = [broken, maker]
    results = await asyncio.gather(*(answers.get("a", one) for one in work), return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert results[1] == maker.answer
    with pytest.raises(ValueError):  # noqa: PT011 the library's own, and ours
        await answers.get("b", broken)
