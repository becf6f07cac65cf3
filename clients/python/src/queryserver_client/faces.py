"""Synchronous wrappers for the async parts of a connection, with one line for each method.

    class Files(Face[core.Files]):
        stat = blocking(core.Files.stat)
        list = iterating(core.Files.list)

The signature and the docstring are those of the async method.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from queryserver_client.event_loop import Loop

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class Face(Generic[C]):
    """A synchronous wrapper of an async object, which runs in the event loop of its connection."""

    def __init__(self, loop: "Loop", core: C) -> None:
        self.loop = loop
        self.core = core
        """The wrapped async object."""

    def __repr__(self) -> str:
        return repr(self.core)


def blocking(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Face[C], P], T]:
    """Return a method that runs the async method and blocks until it has ended."""

    @wraps(method)
    def call(face: Face[C], *args: P.args, **named: P.kwargs) -> T:
        return face.loop.run(partial(method, face.core, *args, **named))

    return call


def iterating(method: Callable[Concatenate[C, P], AsyncIterator[T]]) -> Callable[Concatenate[Face[C], P], Iterator[T]]:
    """Return a method whose iterator yields the items of the async iterator."""

    @wraps(method)
    def call(face: Face[C], *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return face.loop.iterate(partial(method, face.core, *args, **named))

    return call
