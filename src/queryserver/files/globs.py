"""Glob patterns for store paths, with DuckDB's syntax (Contract editor 4.7.4).

A pattern is matched one path segment (name) at a time. Only directories that can contain matches are listed, starting
at the first segment with a wildcard. If the store can list whole trees, `**` takes one call per thousand files instead
of one per directory.
"""

import asyncio
import fnmatch
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from queryserver.errors.files import NotADirectory, PathNotFound, SymlinkNotFollowed, too_many_entries
from queryserver.files.model import FileStatus
from queryserver.files.protocol import FlatStorage, Storage

MAX_FOUND = 100_000
"""Maximum number of matches per pattern, and of entries per listed directory."""
_MAX_WAITING = 100_000
_MAX_CONCURRENT_VISITS = 8
_BATCH = 5000

_WILDCARD = re.compile(r"[*?\[]")
_RECURSIVE = "**"

_Matches = Callable[[str], object]
_States = frozenset[int]
"""States of the automaton: state n means that the first n names of the pattern have matched. After a `**`, several
states are possible at once.
"""


def is_pattern(path: str) -> bool:
    return _WILDCARD.search(path) is not None


class Pattern:
    """A pattern, split into names and matched by a nondeterministic finite automaton."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._matchers: list[_Matches] = [
            re.compile(fnmatch.translate(name)).match if is_pattern(name) else name.__eq__ for name in names
        ]
        wild = next((number for number, name in enumerate(names) if is_pattern(name)), len(names))
        self.fixed = min(wild, max(len(names) - 1, 0))
        """Number of leading directory names without wildcards."""

    @property
    def start(self) -> tuple[str, _States]:
        """The deepest directory that certainly contains all matches, and the automaton's states there."""
        return "/".join(self._names[: self.fixed]), self._with_optional_directories({self.fixed})

    def next_states(self, states: _States, name: str) -> _States:
        """Return the states for the entry `name` of a directory that has the given states. The result is empty if
        neither the entry nor anything below it can match.
        """
        next_states = set[int]()
        for state in states:
            if state == len(self._names):
                continue
            if self._names[state] == _RECURSIVE:
                next_states.add(state)
            elif self._matchers[state](name):
                next_states.add(state + 1)
        return self._with_optional_directories(next_states)

    def is_match(self, states: _States) -> bool:
        """Return whether a file with these states matches."""
        return len(self._names) in states

    def may_contain_matches(self, states: _States) -> bool:
        """Return whether a directory with these states may contain matches."""
        return any(state < len(self._names) for state in states)

    def next_names(self, states: _States) -> Sequence[str] | None:
        """Return the names of the only entries that can match, or None if a wildcard requires listing the directory."""
        names = [self._names[state] for state in states if state < len(self._names)]
        return None if any(map(is_pattern, names)) else list(dict.fromkeys(names))

    def is_recursive(self, states: _States) -> bool:
        return any(state < len(self._names) and self._names[state] == _RECURSIVE for state in states)

    def _with_optional_directories(self, states: Iterable[int]) -> _States:
        """Add the state after each `**`, because `**` also matches zero directories."""
        closed = set(states)
        for state in sorted(closed):
            while state < len(self._names) and self._names[state] == _RECURSIVE:
                state += 1  # noqa: PLW2901 handles consecutive `**`
                closed.add(state)
        return frozenset(closed)


@dataclass(slots=True)
class GlobSearch:
    """One search in a store. `container_levels` is the store's trait; `max_scanned` limits the listed entries."""

    storage: Storage
    pattern: Pattern
    container_levels: int
    max_scanned: int
    _matches: list[FileStatus] = field(default_factory=list[FileStatus], init=False)
    _waiting: deque[tuple[str, _States]] = field(default_factory=deque[tuple[str, _States]], init=False)
    _scanned: int = field(default=0, init=False)

    async def run(self) -> Sequence[FileStatus]:
        """Return the matching files, in any order. A directory that is deleted during the search counts as empty.

        Raises too_many_entries, PermissionDenied if the user may not list one of the directories, and the store's
        errors.
        """
        self._waiting.append(self.pattern.start)
        running, done = set[asyncio.Task[None]](), set[asyncio.Task[None]]()
        try:
            while self._waiting or running:
                while self._waiting and len(running) < _MAX_CONCURRENT_VISITS:
                    path, states = self._waiting.popleft()
                    running.add(asyncio.create_task(self._visit(path, states), name="glob"))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            # If several tasks failed, only the first error is raised; the others are retrieved here.
            await asyncio.gather(*running, *done, return_exceptions=True)
        return self._matches

    async def _visit(self, path: str, states: _States) -> None:
        try:
            names = self.pattern.next_names(states)
            if names is not None:
                await self._visit_names(path, states, names)
            elif self._lists_trees(path) and self.pattern.is_recursive(states):
                await self._search_tree(path, states)
            else:
                await self._search_directory(path, states)
        except (PathNotFound, NotADirectory):
            return
        except SymlinkNotFollowed:
            # A link matched by a wildcard is skipped, but a link in the part before the first wildcard is an error.
            if (path, states) == self.pattern.start:
                raise

    def _lists_trees(self, path: str) -> bool:
        return isinstance(self.storage, FlatStorage) and bool(path) and path.count("/") + 1 >= self.container_levels

    async def _visit_names(self, path: str, states: _States, names: Sequence[str]) -> None:
        for name in names:
            next_states, entry = self.pattern.next_states(states, name), f"{path}/{name}" if path else name
            if self.pattern.is_match(next_states):
                with suppress(PathNotFound):
                    found = await self.storage.stat(entry)
                    self._add_matches([found] if found.is_file else [])
            if self.pattern.may_contain_matches(next_states):
                self._enqueue(entry, next_states)

    async def _search_directory(self, path: str, states: _States) -> None:
        async with aclosing(self.storage.list_directory(path, batch_size=_BATCH)) as batches:
            async for batch in batches:
                self._count_entries(len(batch.entries))
                for entry in batch.entries:
                    next_states = self.pattern.next_states(states, entry.name)
                    if entry.is_file and self.pattern.is_match(next_states):
                        self._add_matches([entry])
                    elif entry.is_directory and self.pattern.may_contain_matches(next_states):
                        self._enqueue(entry.path, next_states)

    async def _search_tree(self, path: str, states: _States) -> None:
        """Search a whole tree with the listing of a flat store."""
        if not isinstance(self.storage, FlatStorage):
            return
        prefix_length = len(path) + 1
        # Files of the same directory are consecutive, so the directory's states are computed once.
        parent, parent_states = "", states
        async with aclosing(self.storage.list_tree(path)) as batches:
            async for entries in batches:
                self._count_entries(len(entries))
                for entry in entries:
                    if not entry.is_file:
                        continue
                    directory, _, name = entry.path[prefix_length:].rpartition("/")
                    if directory != parent:
                        parent, parent_states = directory, states
                        for each in directory.split("/") if directory else ():
                            parent_states = self.pattern.next_states(parent_states, each)
                    if self.pattern.is_match(self.pattern.next_states(parent_states, name)):
                        self._add_matches([entry])

    def _enqueue(self, path: str, states: _States) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            raise too_many_entries(f"The pattern searches more than {_MAX_WAITING} directories.")
        self._waiting.append((path, states))

    def _add_matches(self, files: Sequence[FileStatus]) -> None:
        if len(self._matches) + len(files) > MAX_FOUND:
            raise too_many_entries(f"The pattern matches more than {MAX_FOUND} files.")
        self._matches += files

    def _count_entries(self, entries: int) -> None:
        self._scanned += entries
        if self._scanned > self.max_scanned:
            raise too_many_entries(f"The pattern searches more than {self.max_scanned} entries.")
