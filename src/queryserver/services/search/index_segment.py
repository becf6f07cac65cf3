"""Indexed objects of one view in columns of memory, and how a query is matched against them.

A column is three numbers: its name and its comment in dictionaries, and its table. A million of them take some 15 MB,
and a term is compared with each distinct name once. Rows lie in the order of results: newest first, then by database,
table and column. Everything here is for threads: Arrow works outside the interpreter lock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute

from queryserver.domain.search_terms import Position, Term, folded
from queryserver.interfaces.metadata_index import DATABASE, RECORD, TABLE, UNIT, VIEW, ObjectRow

# Their functions are made at import time, unseen by type checkers.
pc: Any = pyarrow.compute

FIELD = "FIELD"
KINDS = (DATABASE, TABLE, VIEW)
_CHUNK = 4000  # objects whose columns are cut at once
_NOT_WORD = r"[^\pL\pN]"


@dataclass(frozen=True, slots=True)
class Segment:
    """`parents`, `codes` and `comment_codes` have one number per column: its object, its name and its comment."""

    rows: Sequence[ObjectRow]
    """Without the text of columns."""
    kinds: pa.Array
    databases: pa.Array
    owners: pa.Array
    moments: pa.Array
    names: pa.Array
    paths: pa.Array
    comments: pa.Array
    shown_columns: pa.Array
    columns: pa.Array
    """Distinct names; each of these two as shown and folded."""
    shown_column_comments: pa.Array
    column_comments: pa.Array
    codes: pa.Array
    comment_codes: pa.Array
    parents: pa.Array
    places: dict[int, int] = field(repr=False)
    """Object id to its row."""

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        texts = (self.columns, self.shown_columns, self.column_comments, self.shown_column_comments, self.comments)
        arrays = (self.codes, self.comment_codes, self.parents, self.names, self.paths, *texts)
        return sum(array.nbytes for array in arrays) + 600 * len(self.rows)


def build(rows: Sequence[ObjectRow]) -> Segment:
    """A segment of objects in any order."""
    ordered = sorted(rows, key=order_of)
    parents, names, comments = _columns(ordered)
    light = [_without_columns(row) for row in ordered]
    return Segment(
        rows=light,
        kinds=pa.array([KINDS.index(row.kind) for row in light], pa.int8()),
        databases=fold(_strings(row.database for row in light)),
        owners=_strings(row.owner for row in light).dictionary_encode(),
        moments=pa.array([row.modified_at for row in light], pa.timestamp("us", tz="UTC")),
        names=fold(_strings(row.name or row.database for row in light)),
        paths=fold(_strings(".".join(part for part in (row.database, row.name) if part) for row in light)),
        comments=fold(_strings(row.comment for row in light)),
        shown_columns=names.dictionary,
        columns=fold(names.dictionary),
        shown_column_comments=comments.dictionary,
        column_comments=fold(comments.dictionary),
        codes=names.indices,
        comment_codes=comments.indices,
        parents=parents,
        places={row.id: place for place, row in enumerate(light)},
    )


def order_of(row: ObjectRow) -> tuple[bool, float, str, str]:
    """Newest first, those without a time last, then by name."""
    return (*newest(row.modified_at), row.database, row.name)


def newest(moment: datetime | None) -> tuple[bool, float]:
    """Sorts newest first."""
    return moment is None, -moment.timestamp() if moment else 0.0


def fold(texts: pa.Array) -> pa.Array:
    """As `domain.search_terms.folded`: the few texts beyond ASCII by that itself."""
    lowered = pc.ascii_lower(texts)
    foreign = pc.indices_nonzero(pc.invert(pc.string_is_ascii(texts)))
    if not len(foreign):
        return lowered
    replaced = lowered.to_pylist()
    for place in foreign.to_pylist():
        replaced[place] = folded(texts[place].as_py())
    return _strings(replaced)


def contains(texts: pa.Array, term: Term) -> pa.Array:
    """Which folded texts have the term in them."""
    if term.is_literal:
        return pc.match_substring(texts, "".join(term.literals))
    return pc.match_like(texts, f"%{term.like}%")


def is_whole(texts: pa.Array, term: Term) -> pa.Array:
    """Which folded texts are the term."""
    return pc.equal(texts, "".join(term.literals)) if term.is_literal else pc.match_like(texts, term.like)


def positions(names: pa.Array, terms: Sequence[Term]) -> pa.Array:
    """The `Position` of the worst term in each folded name."""
    inside = pa.repeat(pa.scalar(True), len(names))
    for term in terms:
        inside = pc.and_(inside, contains(names, term))
    some = names.filter(inside)
    worst = pa.repeat(_number(Position.EXACT), len(some))
    words = pc.binary_join_element_wise("", _spaced(some), " ") if terms else some
    for term in terms:
        worst = pc.max_element_wise(worst, _positions(some, words, term))
    return pc.replace_with_mask(pa.repeat(_number(Position.ELSEWHERE), len(names)), inside, worst)


def _positions(names: pa.Array, words: pa.Array, term: Term) -> pa.Array:
    """For names that have the term in them."""
    literal = "".join(term.literals)
    starts = pc.starts_with(names, literal) if term.is_literal else pc.match_like(names, f"{term.like}%")
    in_words = contains(words, term.as_word)
    found = pc.if_else(in_words, _number(Position.WORD_STARTS), _number(Position.INSIDE))
    found = pc.if_else(starts, _number(Position.STARTS), found)
    return pc.if_else(is_whole(names, term), _number(Position.EXACT), found)


def _spaced(names: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(names, pattern=_NOT_WORD, replacement=" ")


def _number(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.int8())


def _columns(rows: Sequence[ObjectRow]) -> tuple[pa.Array, pa.DictionaryArray, pa.DictionaryArray]:
    """The row of its object, name and comment of each column."""
    parents: list[pa.Array] = [pa.array([], pa.int32())]
    names: list[pa.Array] = [_strings([]).dictionary_encode()]
    comments: list[pa.Array] = [_strings([]).dictionary_encode()]
    for start in range(0, len(rows), _CHUNK):
        joined = pa.array([row.columns or None for row in rows[start : start + _CHUNK]], pa.string())
        lists = pc.split_pattern(joined, RECORD)
        parents.append(pc.add(pc.list_parent_indices(lists).cast(pa.int32()), pa.scalar(start, pa.int32())))
        pairs = pc.split_pattern(pc.list_flatten(lists), UNIT, max_splits=1)
        names.append(pc.list_element(pairs, 0).dictionary_encode())
        comments.append(pc.list_element(pairs, 1).dictionary_encode())
    return pa.concat_arrays(parents), _unified(names), _unified(comments)


def _unified(parts: Sequence[pa.Array]) -> pa.DictionaryArray:
    return pa.chunked_array(parts).unify_dictionaries().combine_chunks()


def _without_columns(row: ObjectRow) -> ObjectRow:
    return ObjectRow(row.id, row.kind, row.database, row.name, row.comment, row.owner, row.modified_at, None)


def _strings(texts: Iterable[str]) -> pa.Array:
    return pa.array(list(texts), pa.string())
