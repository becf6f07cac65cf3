"""Implements the history entries of the source `documents` (Contract platform 8.4).

A search scans the rows of one user. An index over all statements would slow down every insert, return the rows of all
users, and not help with words that most statements contain. The normalized name that determines the ranking is stored
with each statement; computing it during a search of 100,000 entries took several seconds instead of a few tenths.

Implements the sources `hdfs` and `s3` (Contract platform 8.4): a bounded walk in a store with the caller's rights.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any

from queryserver import errors
from queryserver.files.access import Caller, Location, Stores
from queryserver.files.model import EntryKind, FileStatus, Scheme, StoragePath
from queryserver.files.protocol import FlatStorage
from queryserver.identity.model import METADATA, Scope, User
from queryserver.platform.database import Database
from queryserver.platform.settings.sections import SearchSettings
from queryserver.platform.threads import FairThreads
from queryserver.search.model import (
    AGES,
    FacetName,
    Match,
    Record,
    Search,
    SourceAnswer,
    age_limits,
    best_first,
    count_facets,
    position_of,
)
from queryserver.search.query_language import Query, Term, folded

_TYPE = "HUE"
_NAME_CHARACTERS = 100
_HEAD_CHARACTERS = 400  # length of the statement prefix from which its name is derived

_PREFIXES = {Scheme.HDFS: ("/", "hdfs:"), Scheme.S3A: ("s3a:", "s3:", "s3n:")}
"""Prefixes of absolute paths in each store."""
_SPELLINGS = {Scheme.HDFS: re.compile(r"^hdfs:(?://[^/]*)?(?=/)"), Scheme.S3A: re.compile(r"^s3[an]?:/+")}
_SHOWN = {Scheme.HDFS: "hdfs://", Scheme.S3A: "s3a://"}
"""The canonical prefix of paths in records."""
_SOURCE_TYPES = {Scheme.HDFS: "HDFS", Scheme.S3A: "S3"}
_FILTERS_OF_TABLES = frozenset({"tag", "db", "table"})  # filters that never match files


class HistorySource:
    """Searches the caller's own statements, which requires no permission. Raises DatabaseUnavailable."""

    def __init__(self, database: Database, threads: FairThreads) -> None:
        self._database = database
        self._threads = threads

    async def search(self, user: User, search: Search) -> SourceAnswer:
        if not _passes(user, search.query):
            return SourceAnswer(facets={facet: {} for facet in search.facets})
        rows = await self._ranked(user, search)
        total = rows[0]["total"]
        bounds = [0, *rows[0]["newer"], total]
        facets = {
            FacetName.TYPE: {_TYPE: total},
            FacetName.OWNER: {user.username: total},
            FacetName.TAGS: {},
            FacetName.LAST_MODIFIED: {age: bounds[at + 1] - bounds[at] for at, age in enumerate(AGES)},
        }
        return SourceAnswer(
            # In a thread, because there may be 10,000 matches.
            matches=await self._threads.run(
                user.id, lambda _: [Match(row["position"], _record(user, row)) for row in rows if row["id"] is not None]
            ),
            total=total,
            facets={facet: facets[facet] for facet in search.facets},
        )

    async def _ranked(self, user: User, search: Search) -> Sequence[Any]:
        """Return the user's entries that contain all terms, on connectors that the API token permits.

        Sorted by best position, then newest first. Each row also contains the total, and the number of entries at
        least as recent as each age limit. If there are no entries, a single row is returned.
        """
        terms, ages = search.query.terms, age_limits(search.now)
        arguments = search_arguments(user, search, ages)
        fits, position = matching(terms, arguments, text="statement")
        newer = (f"count(*) filter (where recorded_at >= ($4::timestamptz[])[{one + 1}])" for one in range(len(ages)))
        statement = _SEARCH.format(fits=fits, position=position, newer=", ".join(newer))
        return await self._database.fetch(statement, *arguments)


def _passes(user: User, query: Query) -> bool:
    """Return whether the user's documents can pass the filters. Documents have no tags and no database."""
    values = {"type": [_TYPE], "owner": [user.username], "source": [_TYPE, "documents"]}
    return all(
        any(term.is_whole(folded(value)) for term in terms for value in values.get(name, ()))
        for name, terms in query.filters.items()
    )


def _record(user: User, row: Any) -> Record:
    name = " ".join(row["head"].split())[:_NAME_CHARACTERS]
    return Record(
        original_name=name,
        name=name,
        type=_TYPE,
        source_type=_TYPE,
        identity=str(row["id"]),
        owner=user.username,
        created=row["recorded_at"],
        last_modified=row["recorded_at"],
        connector=row["connector"],
        dialect=row["dialect"],
        link=f"/editor?editor={row['history_id']}",
        doc_type=f"query-{row['dialect']}",
        uuid=str(row["id"]),
        parent_uuid=row["parent_uuid"] or None,
        text=row["excerpt"],
    )


# strpos is twice as fast as LIKE, so a term with wildcards is first narrowed down by its longest literal.
_LITERAL_FITS = "strpos({plain}, {term}::text) > 0"
_LITERAL_NAME_FITS = "strpos({name}, {term}) > 0"
_LITERAL_POSITION = (
    "case when strpos({name}, {term}) = 0 then 4 when {name} = {term} then 0 when starts_with({name}, {term}) then 1"
    " when strpos({words}, {word}::text) > 0 then 2 else 3 end"
)
_WILD_FITS = (
    "(strpos({plain}, {part}::text) > 0 and {plain} like '%' || {term}::text || '%'"
    " or {name} like '%' || {term} || '%')"
)
_WILD_POSITION = (
    "case when {name} not like '%' || {term} || '%' then 4 when {name} like {term} then 0"
    " when {name} like {term} || '%' then 1 when {words} like '%' || {word}::text || '%' then 2 else 3 end"
)

# lower() with collation "C" is fast but folds only ASCII. $5 and $6 list the other letters that occur in the terms, in
# both cases. ASCII statements do not contain these letters.
_SEARCH = f"""
with ranked as materialized (
    select history_id, recorded_at, {{position}} as position from statements
    where user_id = $1 and in_history and ($7::text[] is null or connector = any($7)){{fits}}
),
counted as (
    select count(*) as total, array[{{newer}}]::bigint[] as newer from ranked
),
page as materialized (
    select * from ranked order by position, recorded_at desc, history_id desc limit $3
)
select id, history_id, connector, dialect, page.recorded_at, left(statement, {_HEAD_CHARACTERS}) as head,
    substr(statement, greatest(strpos(translate(lower(statement collate "C"), $5, $6), $2) - 60, 1), 400) as excerpt,
    parent_uuid, page.position, counted.total, counted.newer
from counted
left join (page join statements using (history_id)) on true
order by page.position, page.recorded_at desc, history_id desc
"""


def search_arguments(user: User, search: Search, ages: Sequence[datetime]) -> list[object]:
    """Return the arguments of a search query: user, longest literal, number of rows, ages, letters, connectors.

    The excerpt is centered on the longest literal. $5 and $6 are the letters of `_other_cases`.
    """
    literals = [literal for term in search.query.terms for literal in term.literals]
    source, target = _other_cases(literals)
    reached = None if user.reached is None else list(user.reached)
    return [user.id, max(literals, key=len, default=""), search.reach, list(ages), source, target, reached]


def matching(terms: Sequence[Term], arguments: list[object], *, text: str) -> tuple[str, str]:
    """Return SQL for the condition that all terms match, starting with `and`, and for the worst `NameFit`.

    `text` is the SQL expression of the text to search. It contains the name, whose columns are `search_name` and
    `search_words`. Adds the values to the arguments of `search_arguments`.
    """
    foreign = bool(arguments[4])
    found = [_term_matching(term, arguments, text=text, foreign=foreign) for term in terms]
    conditions = [f"octet_length({text}) > char_length({text})"] * foreign + [fits for fits, _ in found]
    positions = ", ".join(["0", *(position for _, position in found)])
    return "".join(f" and {fits}" for fits in conditions), f"greatest({positions})"


def _term_matching(term: Term, arguments: list[object], *, text: str, foreign: bool) -> tuple[str, str]:
    """Return SQL expressions for whether the term matches, and for its `NameFit`.

    If `foreign` is set, non-ASCII letters are folded too.
    """
    plain, name, words = (
        f"translate({part}, $5, $6)" if foreign else part
        for part in (f'lower({text} collate "C")', "search_name", "search_words")
    )
    at = len(arguments) + 1
    if term.is_literal:
        literal = "".join(term.literals)
        arguments += [literal, "".join(term.as_word.literals)]
        # A name differs from its statement only in that runs of whitespace are collapsed into one blank.
        fits = f"({_LITERAL_FITS} or {_LITERAL_NAME_FITS})" if " " in literal else _LITERAL_FITS
        position = _LITERAL_POSITION
    else:
        arguments += [term.like, term.as_word.like, max(term.literals, key=len, default="")]
        fits, position = _WILD_FITS, _WILD_POSITION
    names = {"plain": plain, "name": name, "words": words, "term": f"${at}", "word": f"${at + 1}", "part": f"${at + 2}"}
    return fits.format(**names), position.format(**names)


def _other_cases(literals: Sequence[str]) -> tuple[str, str]:
    """Return the non-ASCII letters that fold to letters of the terms, and the letters that they fold to."""
    letters = set("".join(literals))
    if all(character.isascii() for character in letters):
        return "", ""
    pairs = [(other, plain) for other, plain in _foldings() if plain in letters]
    return "".join(other for other, _ in pairs), "".join(plain for _, plain in pairs)


@cache
def _foldings() -> Sequence[tuple[str, str]]:
    """Return all non-ASCII letters that fold to another letter. In Unicode, the Adlam letters are the last of them."""
    letters = (chr(code) for code in range(0x80, 0x1E944) if not 0xD800 <= code < 0xE000)
    return [(letter, plain) for letter in letters if (plain := folded(letter)) != letter]


@dataclass(slots=True)
class _Walk:
    bounds: SearchSettings
    entries: int = 0
    listings: int = 0
    is_cut: bool = False
    matches: list[Match] = field(default_factory=list[Match])

    def may_list(self) -> bool:
        """Count a directory listing. Return False without counting if a limit has been reached."""
        self.is_cut = self.is_cut or self.listings >= self.bounds.max_dirs or self.entries >= self.bounds.max_entries
        self.listings += not self.is_cut
        return not self.is_cut

    def may_see(self) -> bool:
        """Count an entry. Return False without counting if the limit has been reached."""
        self.is_cut = self.is_cut or self.entries >= self.bounds.max_entries
        self.entries += not self.is_cut
        return not self.is_cut


class StorageSource:
    """Searches one store with the caller's rights. A search ends at the first limit that it reaches."""

    def __init__(self, stores: Stores, scheme: Scheme, bounds: SearchSettings) -> None:
        self._stores = stores
        self._scheme = scheme
        self._bounds = bounds

    @property
    def time_limit_s(self) -> float:
        return self._bounds.max_seconds

    async def search(self, user: User, search: Search) -> SourceAnswer:
        """Search the store.

        Raises PermissionDenied, SourceNotConfigured, StorageError, and errors for the start directory.
        """
        if not user.may(METADATA):
            raise errors.PermissionDenied("You may not search metadata.")
        if not user.has_scope(Scope.FILES_READ):
            raise errors.InsufficientScope(Scope.FILES_READ)
        walk, caller = _Walk(self._bounds), Caller.of(user)
        try:
            start, term = self._start(caller, search.query)
            location = self._stores.location(caller, start)
        except errors.StorageNotConfigured:
            raise errors.SourceNotConfigured("Not configured.") from None
        except errors.PermissionDenied as error:
            raise errors.PermissionDenied(error.message) from error
        try:
            async with asyncio.timeout(self._bounds.max_seconds):
                await self._walk(location, self._as_shown(search.query, term), walk)
        except TimeoutError:
            walk.is_cut = True
        except (errors.PathNotFound, errors.NotADirectory):
            if walk.entries:
                raise
            return SourceAnswer(message=f"{start} does not exist.")
        except errors.PermissionDenied as error:
            # Store errors may have specific codes, but a search reports the generic one.
            raise errors.PermissionDenied(error.message) from error
        walk.matches.sort(key=best_first)
        return SourceAnswer(
            matches=walk.matches[: search.reach],
            total=len(walk.matches),
            facets=count_facets([match.record for match in walk.matches], search),
            truncated=walk.is_cut,
            message=f"The search started in {start} and did not cover everything below it." if walk.is_cut else "",
        )

    def _start(self, caller: Caller, query: Query) -> tuple[StoragePath, Term | None]:
        """Return the directory in which to start, and the term that named it.

        The first term that is an absolute path in this store names the directory: its text up to the last slash. If no
        term is such a path, the search starts in the caller's home directory, and the term is None.
        """
        for term in query.terms:
            if term.head.lower().startswith(_PREFIXES[self._scheme]):
                try:
                    path = self._stores.path(term.head.rpartition("/")[0] + "/")
                except (errors.InvalidRequest, errors.StorageNotConfigured):
                    continue
                if path.scheme is self._scheme:
                    return path, term
        return self._stores.home(caller, self._scheme), None

    def _as_shown(self, query: Query, start: Term | None) -> Query:
        """Return the query with the start path in canonical form, because terms are matched against record paths."""
        shown, spelling = _SHOWN[self._scheme], _SPELLINGS[self._scheme]
        terms = (term.beginning_with(shown, spelling) if term is start else term for term in query.terms)
        return replace(query, terms=tuple(terms))

    async def _walk(self, location: Location, query: Query, walk: _Walk) -> None:
        if isinstance(location.storage, FlatStorage):
            entries = _flat_entries(location, location.storage, walk)
        else:
            entries = _entries(location, walk)
        async with aclosing(entries) as statuses:
            async for status in statuses:
                if match := self._match(status, query):
                    walk.matches.append(match)

    def _match(self, status: FileStatus, query: Query) -> Match | None:
        record = self._record(status)
        name, whole = folded(record.name), folded(record.original_name)
        values = {
            "type": (record.type,),
            "owner": (record.owner,),
            "source": (record.source_type, record.source_type.lower()),
        }
        for filter_name, terms in query.filters.items():
            if filter_name in _FILTERS_OF_TABLES or not any(
                term.is_whole(folded(value)) for term in terms for value in values[filter_name]
            ):
                return None
        for term in query.terms:
            if term.find_in(whole if "/" in "".join(term.literals) else name) is None:
                return None
        return Match(position_of(query.terms, record.name), record)

    def _record(self, status: FileStatus) -> Record:
        path = StoragePath(self._scheme, status.path)
        shown = f"hdfs://{path}" if path.scheme is Scheme.HDFS else str(path)
        is_bucket = self._scheme is Scheme.S3A and path.parent.is_root
        return Record(
            original_name=shown,
            name=path.name,
            type="S3BUCKET" if is_bucket else "DIRECTORY" if status.is_directory else "FILE",
            source_type=_SOURCE_TYPES[self._scheme],
            identity=shown,
            parent_path=str(path.parent),
            owner=status.owner,
            last_modified=status.modified_at,
        )


async def _entries(location: Location, walk: _Walk) -> AsyncGenerator[FileStatus]:
    """Walk breadth-first. Skips directories that the caller may not list, except the first."""
    pending = deque([location.path.path])
    while pending and walk.may_list():
        directory = pending.popleft()
        try:
            async with aclosing(location.storage.list_directory(directory)) as batches:
                async for batch in batches:
                    for status in batch.entries:
                        if not walk.may_see():
                            return
                        if status.is_directory:
                            pending.append(status.path)
                        yield status
        except (errors.PermissionDenied, errors.PathNotFound, errors.NotADirectory):
            if directory == location.path.path:
                raise
    walk.is_cut = walk.is_cut or bool(pending)


async def _flat_entries(location: Location, storage: FlatStorage, walk: _Walk) -> AsyncGenerator[FileStatus]:
    """Yield the keys below a directory. At the root, yield all buckets and then the keys in each bucket."""
    trees = [location.path.path]
    if location.path.is_root:
        buckets = [status async for batch in location.storage.list_directory("") for status in batch.entries]
        trees = [bucket.path for bucket in buckets]
        for bucket in buckets:
            if not walk.may_see():
                return
            yield bucket
    for tree in trees:
        if not walk.may_list():
            return
        try:
            async with aclosing(_tree_entries(storage, tree, walk)) as statuses:
                async for status in statuses:
                    yield status
        except (errors.PermissionDenied, errors.PathNotFound):
            # An inaccessible or deleted bucket must not hide the others.
            if not location.path.is_root:
                raise


async def _tree_entries(storage: FlatStorage, tree: str, walk: _Walk) -> AsyncGenerator[FileStatus]:
    """Yield the keys and directories below a directory. The caller has already counted the first listing."""
    known, is_first = {tree}, True
    async with aclosing(storage.list_tree(tree)) as pages:
        async for page in pages:
            # Counted after reading, so that a walk that ends exactly at the limit does not count as truncated.
            if not (is_first or walk.may_list()):
                return
            is_first = False
            for status in page:
                for entry in _with_new_folders(status, known):
                    if not walk.may_see():
                        return
                    yield entry


def _with_new_folders(status: FileStatus, known: set[str]) -> Sequence[FileStatus]:
    """Return the directories that a key reveals, outermost first, and the key itself.

    A directory marker represents its own directory.
    """
    if status.is_directory and status.path in known:
        return []
    folders = [status]
    path = status.path.rpartition("/")[0]
    while path and path not in known:
        known.add(path)
        folders.append(FileStatus(path, EntryKind.DIRECTORY, 0, None))
        path = path.rpartition("/")[0]
    if status.is_directory:
        known.add(status.path)
    return folders[::-1]
