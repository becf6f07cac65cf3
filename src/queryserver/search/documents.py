"""Implements the source `documents`: the caller's history entries (Contract platform 8.4).

A search scans the rows of one user. An index over all statements would slow down every insert, return the rows of all
users, and not help with words that most statements contain. The normalized name that determines the ranking is stored
with each statement; computing it during a search of 100,000 entries took several seconds instead of a few tenths.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.threads import FairThreads
from queryserver.search.model import AGES, FacetName, Match, Record, Search, SourceAnswer, age_limits
from queryserver.search.query_language import Query, Term, folded

_TYPE = "HUE"
_NAME_CHARACTERS = 100
_HEAD_CHARACTERS = 400  # length of the statement prefix from which its name is derived


class DocumentSource:
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
        literals = [literal for term in terms for literal in term.literals]
        source, target = _other_cases(literals)
        longest = max(literals, key=len, default="")  # the excerpt is centered on this literal
        reached = None if user.reached is None else list(user.reached)
        arguments: list[object] = [user.id, longest, search.reach, list(ages), source, target, reached]
        matching = [_matching(term, arguments, foreign=bool(source)) for term in terms]
        newer = (f"count(*) filter (where recorded_at >= ($4::timestamptz[])[{one + 1}])" for one in range(len(ages)))
        statement = _SEARCH.format(
            fits="".join(f" and {fits}" for fits, _ in [(_FOREIGN_FITS, "")] * bool(source) + matching),
            position=f"greatest({', '.join(['0', *(position for _, position in matching)])})",
            newer=", ".join(newer),
        )
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
_FOREIGN_FITS = "octet_length(statement) > char_length(statement)"

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


def _matching(term: Term, arguments: list[object], *, foreign: bool) -> tuple[str, str]:
    """Return SQL expressions for whether the term matches, and for its `NameFit`.

    If `foreign` is set, non-ASCII letters are folded too.
    """
    plain, name, words = (
        f"translate({text}, $5, $6)" if foreign else text
        for text in ('lower(statement collate "C")', "search_name", "search_words")
    )
    at = len(arguments) + 1
    if term.is_literal:
        text = "".join(term.literals)
        arguments += [text, "".join(term.as_word.literals)]
        # A name differs from its statement only in that runs of whitespace are collapsed into one blank.
        fits = f"({_LITERAL_FITS} or {_LITERAL_NAME_FITS})" if " " in text else _LITERAL_FITS
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
    """Return all non-ASCII letters that fold to another letter. The last such letters in Unicode are Adlam."""
    letters = (chr(code) for code in range(0x80, 0x1E944) if not 0xD800 <= code < 0xE000)
    return [(letter, plain) for letter in letters if (plain := folded(letter)) != letter]
