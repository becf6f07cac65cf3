"""What the metadata search reads: the index of tables, and the history of a user.

In the index a table is one row that holds its columns as text: a refresh writes 30,000 rows instead of a million, and
unchanged tables write none. Writers of a scope lock its row one after another, so versions become visible in order.

Of the history only rows of one user are read: an index over all statements would be written with each of them, would
return rows of all users, and would not help with a word that most statements contain. What a name is ranked by is
stored beside the statement: without that, 100,000 entries took several seconds instead of some tenths of a second.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache

import asyncpg

from queryserver.platform.database import Connection, Database
from queryserver.search.model import (
    DATABASE,
    RECORD,
    TABLE,
    UNIT,
    VIEW,
    FoundDocument,
    FoundDocuments,
    IndexedObject,
    ObjectRow,
    Scope,
    ScopeKey,
)
from queryserver.search.query_language import Term, folded

_PORTION = 2000

_ENSURE = """
insert into metadata_scopes as kept (connector, user_id, stored, address) values ($1, $2, $3, $4)
on conflict (connector, coalesce(user_id, 0)) do update
    set address = excluded.address, version = kept.version + 1, epoch = kept.epoch + 1, refreshed_at = null,
        failed_at = null, truncated = false, lease_owner = null, lease_until = null
    where kept.address <> excluded.address
returning id, version, epoch, truncated, epoch > 0 as moved
"""

_FIND = """
select id, version, epoch, truncated from metadata_scopes
where connector = $1 and coalesce(user_id, 0) = coalesce($2, 0) and address = $3
"""

_USED = """
update metadata_scopes set used_at = now()
where id = any($1::bigint[]) and used_at < now() - interval '1 minute'
"""

_SCOPES = """
select scope.id, scope.version, scope.epoch, scope.truncated, asked.place
from unnest($1::text[], $2::bigint[], $3::bytea[]) with ordinality as asked(connector, user_id, address, place)
join metadata_scopes as scope on scope.connector = asked.connector
    and coalesce(scope.user_id, 0) = coalesce(asked.user_id, 0) and scope.address = asked.address
"""

_PUT = """
insert into metadata_objects as kept
    (scope_id, kind, database, name, comment, owner, modified_at, columns, columns_cut, version)
select $1::bigint, kind, database, name, coalesce(comment, ''), coalesce(owner, ''), modified_at, columns, columns_cut,
    $2::bigint
from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::text[], $10::boolean[])
    as given(kind, database, name, comment, owner, modified_at, columns, columns_cut)
on conflict (scope_id, database, name) do update set
    kind = excluded.kind,
    comment = case when $11 then excluded.comment else coalesce(nullif(excluded.comment, ''), kept.comment) end,
    owner = coalesce(nullif(excluded.owner, ''), kept.owner),
    modified_at = coalesce(excluded.modified_at, kept.modified_at),
    columns = coalesce(excluded.columns, kept.columns),
    columns_cut = case when excluded.columns is null then kept.columns_cut else excluded.columns_cut end,
    version = excluded.version,
    changed_at = now()
where (kept.kind, kept.comment, kept.owner, kept.modified_at, kept.columns, kept.columns_cut) is distinct from (
    excluded.kind,
    case when $11 then excluded.comment else coalesce(nullif(excluded.comment, ''), kept.comment) end,
    coalesce(nullif(excluded.owner, ''), kept.owner),
    coalesce(excluded.modified_at, kept.modified_at),
    coalesce(excluded.columns, kept.columns),
    case when excluded.columns is null then kept.columns_cut else excluded.columns_cut end
)
"""

# Databases, which have no name of a table, are counted for themselves.
_TOO_MANY = """
with had as (
    select count(*) filter (where name <> '') as tables, count(*) filter (where name = '') as databases
    from metadata_objects where scope_id = $1
),
new as (
    select given.place, given.name <> '' as is_table,
        row_number() over (partition by given.name <> '' order by given.place) as number
    from unnest($2::text[], $3::text[]) with ordinality as given(database, name, place)
    where not exists (
        select from metadata_objects where scope_id = $1 and database = given.database and name = given.name
    )
)
select new.place - 1 as place from new, had
where new.number + case when new.is_table then had.tables else had.databases end > $4
"""

_CUT = "update metadata_scopes set truncated = true where id = $1 and not truncated"

_READ = """
select id, kind, database, name, comment, owner, modified_at, columns from metadata_objects
where scope_id = $1 and version > $2 and id > $3 order by id limit $4
"""

# The lock of a connector, until the transaction ends: two users who claim its scopes at once see each other's leases.
_TAKE_TURNS = "select pg_advisory_xact_lock(hashtextextended('metadata index ' || $1, 0))"

_CLAIM = """
update metadata_scopes as mine set lease_owner = $2, lease_until = now() + $3::interval
where id = $1 and coalesce(refreshed_at < now() - $4::interval, true)
    and coalesce(failed_at < now() - $5::interval, true)
    and not exists (
        select from metadata_scopes as other where other.connector = mine.connector and other.lease_until >= now()
    )
returning id, version, epoch, truncated
"""

_REMOVE = """
with seen as (select * from unnest($3::text[], $4::text[]) as seen(database, name)),
gone as (
    delete from metadata_objects as kept where scope_id = $1 and changed_at < $2 and kept.database <> all($5::text[])
        and not exists (select from seen where seen.database = kept.database and seen.name = kept.name)
    returning 1
)
select count(*) from gone
"""

_COMPLETE = """
update metadata_scopes set refreshed_at = case when not $5 then now() end, failed_at = null,
    lease_owner = null, lease_until = null,
    truncated = $3 or exists (select from metadata_objects where scope_id = $1 and columns_cut),
    version = version + $4, epoch = epoch + $4
where id = $1 and lease_owner = $2
"""

_SWEEP = """
delete from metadata_scopes as scope
where (stored and not exists (select from connectors where id::text = scope.connector and deleted_at is null))
    or greatest(used_at, refreshed_at) < now() - $1::interval
"""

_FAILED_PAUSE = timedelta(minutes=5)


class MetadataIndexRecords:
    """Each call is one transaction, but for `read`. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def scope(self, key: ScopeKey) -> Scope:
        """The scope of that key, made when there is none; one of another address loses its objects first."""
        found = await self._database.row(_FIND, key.connector, key.user_id, key.address)
        if found is not None:
            return _scope(key, found)
        async with self._database.transaction() as connection:
            made = await connection.fetchrow(_ENSURE, key.connector, key.user_id, key.is_stored, key.address)
            if made is None:  # another process was quicker
                made = await connection.fetchrow(_FIND, key.connector, key.user_id, key.address)
            elif made["moved"]:
                await connection.execute("delete from metadata_objects where scope_id = $1", made["id"])
            if made is None:
                raise AssertionError("a scope that was just made")
            return _scope(key, made)

    async def scopes(self, keys: Sequence[ScopeKey]) -> Sequence[Scope]:
        """Those that exist, with the same address; noted as used."""
        found = await self._database.fetch(
            _SCOPES, [key.connector for key in keys], [key.user_id for key in keys], [key.address for key in keys]
        )
        scopes = [_scope(keys[row["place"] - 1], row) for row in found]
        await self._database.execute(_USED, [scope.id for scope in scopes])
        return scopes

    async def put(self, scope_id: int, objects: Sequence[IndexedObject], *, max_tables: int) -> bool:
        """Add or change objects; those that say nothing new touch nothing. False: something was left out.

        That is new tables above `max_tables`, all of the scope counted, and as many databases. The scope is truncated
        from then on, until the end of a refresh, when something was left out, or an object has columns that were cut.
        """
        last = {(one.database, one.name): one for one in objects}
        async with self._database.transaction() as connection:
            version = await connection.fetchval(
                "update metadata_scopes set version = version + 1, used_at = now() where id = $1 returning version",
                scope_id,
            )
            if version is None:
                return True
            kept = await _within(connection, scope_id, list(last.values()), max_tables)
            is_whole = len(kept) == len(last)
            if not is_whole or any(one.columns_cut for one in kept):
                await connection.execute(_CUT, scope_id)
            changed = 0
            for full in (True, False):
                some = [one for one in kept if (one.comment is not None) is full]
                if some:
                    tag = await connection.execute(_PUT, scope_id, version, *_columns_of(some), full)
                    changed += int(tag.rpartition(" ")[2])
            if not changed:
                await connection.execute("update metadata_scopes set version = version - 1 where id = $1", scope_id)
        return is_whole

    async def tables_by_database(self, scope_id: int) -> Mapping[str, int]:
        """The databases that have objects, and how many tables of each are indexed."""
        rows = await self._database.fetch(
            "select database, count(*) filter (where name <> '') as tables from metadata_objects"
            " where scope_id = $1 group by database",
            scope_id,
        )
        return {row["database"]: row["tables"] for row in rows}

    async def read(self, scope_id: int, *, after_version: int) -> AsyncIterator[Sequence[ObjectRow]]:
        """Objects that were changed after that version, in portions."""
        last = 0
        while rows := await self._database.fetch(_READ, scope_id, after_version, last, _PORTION):
            yield [ObjectRow(*row) for row in rows]
            last = rows[-1]["id"]

    async def claim(self, key: ScopeKey, *, owner: str, lease: timedelta, interval: timedelta) -> Scope | None:
        """The scope, to be refreshed by `owner` alone for a while; None when it is not due, or somebody has it.

        None also while another scope of the same connector is refreshed: a data source is read once at a time.
        """
        scope = await self.scope(key)
        async with self._database.transaction() as connection:
            await connection.execute(_TAKE_TURNS, key.connector)
            row = await connection.fetchrow(_CLAIM, scope.id, owner, lease, interval, min(interval, _FAILED_PAUSE))
        return None if row is None else _scope(key, row)

    async def renew(self, scope_id: int, *, owner: str, lease: timedelta) -> bool:
        """False when the lease is lost."""
        renewed = await self._database.execute(
            "update metadata_scopes set lease_until = now() + $3::interval where id = $1 and lease_owner = $2",
            scope_id,
            owner,
            lease,
        )
        return renewed == 1

    async def complete(
        self,
        scope_id: int,
        *,
        owner: str,
        seen: Mapping[str, Sequence[str]],
        unread: Collection[str],
        began: datetime,
        truncated: bool,
        again: bool,
    ) -> None:
        """End a refresh: what was not seen and did not come meanwhile is removed.

        `again`: the next one is due at once if anything was. `seen`: database to its tables. Of
        the databases in `unread` nobody knows what they hold: their rows stay.
        """
        pairs = [(database, name) for database, names in seen.items() for name in ("", *names)]
        async with self._database.transaction() as connection:
            held = await connection.fetchval(
                "select true from metadata_scopes where id = $1 and lease_owner = $2 for update", scope_id, owner
            )
            if held:
                databases, names = [one for one, _ in pairs], [one for _, one in pairs]
                gone = await connection.fetchval(_REMOVE, scope_id, began, databases, names, list(unread))
                await connection.execute(_COMPLETE, scope_id, owner, truncated, int(gone > 0), again and gone > 0)

    async def give_up(self, scope_id: int, *, owner: str, soon: bool) -> None:
        """End a refresh that failed: objects stay; it is due again at once if `soon`, else after some minutes."""
        await self._database.execute(
            "update metadata_scopes set failed_at = case when $3 then failed_at else now() end,"
            " lease_owner = null, lease_until = null where id = $1 and lease_owner = $2",
            scope_id,
            owner,
            soon,
        )

    async def now(self) -> datetime:
        """The time of the database."""
        return await self._database.value("select clock_timestamp()")

    async def sweep(self, *, unused_for: timedelta) -> int:
        """Delete scopes of connectors that are gone, and what nobody used or refreshed for so long."""
        return await self._database.execute(_SWEEP, unused_for)

    async def counts(self) -> Mapping[str, int]:
        """How many objects of each kind there are, columns not counted."""
        rows = await self._database.fetch("select kind, count(*) as objects from metadata_objects group by kind")
        return {kind.lower(): 0 for kind in (DATABASE, TABLE, VIEW)} | {
            row["kind"].lower(): row["objects"] for row in rows
        }


async def _within(
    connection: Connection, scope_id: int, objects: list[IndexedObject], max_tables: int
) -> Sequence[IndexedObject]:
    """Without the new tables that are too many, nor databases that are."""
    databases, names = [one.database for one in objects], [one.name for one in objects]
    left_out = {row["place"] for row in await connection.fetch(_TOO_MANY, scope_id, databases, names, max_tables)}
    return [one for place, one in enumerate(objects) if place not in left_out]


def _columns_of(objects: Sequence[IndexedObject]) -> Iterable[list[object]]:
    """The arguments of `_PUT`, one list per column."""
    rows = [
        (one.kind, one.database, one.name, one.comment, one.owner, one.modified_at, _joined(one), one.columns_cut)
        for one in objects
    ]
    return (list(column) for column in zip(*rows, strict=True))


def _joined(one: IndexedObject) -> str | None:
    """Columns in one text, by name. A separator within a name, which no engine is known to allow, becomes a blank."""
    if one.columns is None:
        return None
    return RECORD.join(sorted(f"{_plain(column.name)}{UNIT}{_plain(column.comment)}" for column in one.columns))


def _plain(text: str) -> str:
    return text.replace(UNIT, " ").replace(RECORD, " ").replace("\0", " ")


def _scope(key: ScopeKey, row: asyncpg.Record) -> Scope:
    return Scope(row["id"], key, row["version"], row["epoch"], row["truncated"])


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
