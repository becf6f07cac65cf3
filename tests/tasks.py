"""Tracks the asyncio tasks that a test starts in an event loop that it shares with other tests' servers."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any


class TasksBegun:
    """The asyncio tasks started during a test. Tasks that existed before, such as other tests' servers, are excluded,
    and so are the tasks that they start.
    """

    def __init__(self, earlier: set[asyncio.Task[Any]]) -> None:
        self._earlier = earlier
        self._begun: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Record a task that the current task is creating."""
        maker = asyncio.current_task(task.get_loop())
        (self._earlier if maker in self._earlier else self._begun).add(task)

    def left(self, *names: str) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks, excluding the current one. If names are given, return only the tasks with one of
        these names.
        """
        return [
            task
            for task in self._begun
            if not task.done() and task is not asyncio.current_task() and (not names or task.get_name() in names)
        ]


@contextmanager
def tasks_begun() -> Iterator[TasksBegun]:
    """Track the tasks that start until the context exits. Tasks of servers that other tests share are not tracked."""
    loop, current = asyncio.get_running_loop(), asyncio.current_task()
    begun = TasksBegun({task for task in asyncio.all_tasks() if task is not current})
    former = loop.get_task_factory()

    def make(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, context=context)
        begun.add(task)
        return task

    loop.set_task_factory(make)
    try:
        yield begun
    finally:
        loop.set_task_factory(former)
