"""History entries found by their statements and names.

Only rows of one user are read: an index over all statements would have to be written with each of them, gives rows of
everybody, and helps no word that is in most of them. What a name is ranked by is kept beside the statement, for that
took most of the time: 100,000 entries take some tenths of a second, and took several seconds.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import cache

from queryserver.db.database import Database
from queryserver.domain.search_terms import Term, folded
from queryserver.interfaces.search_documents import FoundDocument, FoundDocuments

_HEAD = 400  # characters that a name is made of


class DocumentRecords:
    """Reads history entries; raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(
        self, user_id: int, terms: Sequence[Term], *, most: int, ages: Sequence[datetime]
    ) -> FoundDocuments:
        """Entries of that user with all terms in statement or name: best position first, then newest."""
        source, target = _other_cases(terms)
        arguments: list[object] = [user_id, _literal_of(terms), most, list(ages), source, target]
        matching = [_matching(term, arguments, foreign=bool(source)) for term in terms]
        newer = (f"count(*) filter (where recorded_at >= ($4::timestamptz[])[{one + 1}])" for one in range(len(ages)))
        statement = _SEARCH.format(
            fits="".join(f" and {fits}" for fits, _ in [(_FOREIGN_FITS, "")] * bool(source) + matching),
            position=f"greatest({', '.join(['0', *(position for _, position in matching)])})",
            newer=", ".join(newer),
        )
        rows = await self._database.fetch(statement, *arguments)
        total, told = (rows[0]["total"], rows[0]["newer"]) if rows else (0, [0] * len(ages))
        return FoundDocuments([FoundDocument(*row[:9]) for row in rows if row["id"] is not None], total, told)


def _matching(term: Term, arguments: list[object], *, foreign: bool) -> tuple[str, str]:
    """Whether a document has the term, and the `Position` in its name, as SQL; what they need joins the arguments.

    `foreign`: letters that are not ASCII must be folded, too.
    """
    plain, name, words = (
        f"translate({text}, $5, $6)" if foreign else text
        for text in ('lower(statement collate "C")', "search_name", "search_words")
    )
    at = len(arguments) + 1
    if term.is_literal:
        text = "".join(term.literals)
        arguments += [text, "".join(term.as_word.literals)]
        fits, position = _LITERAL_FITS, _LITERAL_POSITION
        if " " in text:
            # A name has one blank for each run of blanks and line breaks of its statement; else it has nothing new.
            fits = f"({fits} or {_LITERAL_NAME_FITS})"
    else:
        arguments += [term.like, term.as_word.like, max(term.literals, key=len, default="")]
        fits, position = f"({_WILD_FITS} or {_WILD_NAME_FITS})", _WILD_POSITION
    given = {"plain": plain, "name": name, "words": words, "term": f"${at}", "word": f"${at + 1}", "part": f"${at + 2}"}
    return fits.format(**given), position.format(**given)


_FOREIGN_FITS = "octet_length(statement) > char_length(statement)"

# strpos is twice as fast as LIKE, and a statement must have the longest literal of what has wildcards.
_LITERAL_FITS = "strpos({plain}, {term}::text) > 0"
_LITERAL_NAME_FITS = "strpos({name}, {term}) > 0"
_LITERAL_POSITION = (
    "case when strpos({name}, {term}) = 0 then 4 when {name} = {term} then 0 when starts_with({name}, {term}) then 1"
    " when strpos({words}, {word}::text) > 0 then 2 else 3 end"
)
_WILD_FITS = "strpos({plain}, {part}::text) > 0 and {plain} like '%' || {term}::text || '%'"
_WILD_NAME_FITS = "{name} like '%' || {term} || '%'"
_WILD_POSITION = (
    "case when {name} not like '%' || {term} || '%' then 4 when {name} like {term} then 0"
    " when {name} like {term} || '%' then 1 when {words} like '%' || {word}::text || '%' then 2 else 3 end"
)

# lower() of the collation "C" knows ASCII only and is fast; $5 and $6 are the other letters of the terms in both cases,
# which no statement of ASCII has.
_SEARCH = f"""
with ranked as materialized (
    select history_id, recorded_at, {{position}} as position from statements
    where user_id = $1 and in_history{{fits}}
),
counted as (
    select count(*) as total, array[{{newer}}]::bigint[] as newer from ranked
),
page as materialized (
    select * from ranked order by position, recorded_at desc, history_id desc limit $3
)
select id, history_id, connector, dialect, page.recorded_at, left(statement, {_HEAD}) as head,
    substr(statement, greatest(strpos(translate(lower(statement collate "C"), $5, $6), $2) - 60, 1), 400) as excerpt,
    parent_uuid, page.position, counted.total, counted.newer
from counted
left join (page join statements using (history_id)) on true
order by page.position, page.recorded_at desc, history_id desc
"""


def _literal_of(terms: Sequence[Term]) -> str:
    """What the excerpt is looked for by: the longest one tells most."""
    return max((literal for term in terms for literal in term.literals), key=len, default="")


def _other_cases(terms: Sequence[Term]) -> tuple[str, str]:
    """Letters beyond ASCII that are folded to those of the terms, and what each is folded to."""
    wanted = {character for term in terms for literal in term.literals for character in literal}
    if all(character.isascii() for character in wanted):
        return "", ""
    pairs = [(other, plain) for other, plain in _foldings() if plain in wanted]
    return "".join(other for other, _ in pairs), "".join(plain for _, plain in pairs)


@cache
def _foldings() -> Sequence[tuple[str, str]]:
    """All letters beyond ASCII that fold to another one; the last ones of Unicode are Adlam's."""
    letters = (chr(code) for code in range(0x80, 0x1E944) if not 0xD800 <= code < 0xE000)
    return [(letter, plain) for letter in letters if (plain := folded(letter)) != letter]
