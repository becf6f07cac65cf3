"""Builds the queries of lists of documents, and finds the documents that may contain a text.

A list is a page in the order of an index: own documents, those shared with the user, and those shared with each of the
user's groups are read separately, each up to a page. With `or` between them, PostgreSQL would read and sort all.
"""

from collections.abc import Iterable, Sequence

from queryserver.documents.model import DocumentQuery
from queryserver.identity.model import User
from queryserver.platform.database import Connection, Database

MAX_CANDIDATES = 5000
"""Above this number of documents with the trigrams of a text, the documents that the caller may see are read instead.
A text that so many documents contain is soon found there.
"""
_MAX_RUN_CHARACTERS = 100
_MAX_RUNS = 20
_TRIGRAM_BYTES = 3

SHOWN = (
    "d.id, d.uuid, d.name, d.description, d.connector, d.dialect, d.database, d.tags, d.folder, d.version,"
    " d.created_at, d.modified_at, d.modified_by, d.trashed_at is not null as is_trashed"
)

# The highest permission of the user $1 for a document `d`; null if there is none. $2: the user is an administrator.
PERMISSION = """
    case when d.owner_id = $1 or $2 then 'manage' else (
        select g.permission from document_grants g
        where g.document_id = d.id and d.trashed_at is null and (
            g.user_id = $1
            or g.group_id in (select m.group_id from group_members m where m.user_id = $1)
        )
        order by array_position(array['edit', 'run', 'view'], g.permission) limit 1
    ) end
"""

# After five executions, PostgreSQL would use one plan for all users and filters, which for users with few documents is
# a hundred times slower than the plan for their values (docs/benchmarks.md).
PLAN_FOR_VALUES = "set local plan_cache_mode = force_custom_plan"

_TEXTS = "lower(d.name || E'\\n' || d.description || E'\\n' || d.statement)"

# $1: parts of the text, $2: the number of rows. The index is read completely, but only $2 rows of the table.
_CANDIDATES = """
select document_id from document_trigrams
where trigrams @> array(select unnest(text_trigrams(lower(part))) from unnest($1::text[]) as part)
limit $2
"""


async def candidates(database: Database | Connection, texts: Iterable[str]) -> Sequence[int] | None:
    """Return the ids of all documents that may contain all of the texts, in any case; also of other users.

    None if the texts are too short, or if more than MAX_CANDIDATES documents have their trigrams.
    """
    parts = [part for text in texts for part in _caseless_runs(text)]
    if not parts:
        return None
    rows = await database.fetch(_CANDIDATES, parts[:_MAX_RUNS], MAX_CANDIDATES + 1)
    return None if len(rows) > MAX_CANDIDATES else [row["document_id"] for row in rows]


def _caseless_runs(text: str) -> Sequence[str]:
    """Return the parts of a text that every folding of upper and lower case treats alike, and that have trigrams."""
    kept = "".join(one if one.isascii() or one.lower() == one == one.upper() else "\0" for one in text)
    runs = [run[:_MAX_RUN_CHARACTERS] for run in kept.split("\0")]
    return [run for run in runs if len(run.encode()) >= _TRIGRAM_BYTES]


def page_query(
    user: User, query: DocumentQuery, *, owner_id: int | None, ids: Sequence[int] | None
) -> tuple[str, Sequence[object]]:
    """Return the SQL of a page and its arguments.

    The SQL has only the conditions in use: with optional conditions, one query for all would not use the indexes.
    `ids` are the documents that may contain `query.text`, or None if all must be searched.
    """
    reached = None if user.reached is None else list(user.reached)
    arguments: list[object] = [user.id, user.is_admin, query.limit + 1]
    conditions = ["d.trashed_at is not null" if query.is_trashed else "d.trashed_at is null"]
    for argument, condition in (
        (reached, "d.connector = any({}::text[])"),
        (query.folder, "d.folder = {}::text"),
        (None if query.tag is None else [query.tag], "d.tags @> {}::text[]"),
        (_dialect(query), "d.dialect = {}::text"),
        (query.text, f"strpos({_TEXTS}, lower({{}}::text)) > 0"),
        (ids, "d.id = any({}::bigint[])"),
        (owner_id, "d.owner_id = {}::bigint"),
    ):
        if argument is not None:
            arguments.append(argument)
            conditions.append(condition.format(f"${len(arguments)}"))
    if query.type == "notebook":
        conditions.append("d.dialect is null")
    after = ""
    if query.after is not None:
        arguments += [query.after.modified, query.after.id]
        after = f" and ({{}}) < (${len(arguments) - 1}::timestamptz, ${len(arguments)}::bigint)"
    found = " union ".join(f"({part})" for part in _parts(query, " and ".join(conditions), after))
    return (
        f"""select {SHOWN}, u.username as owner, {PERMISSION} as permission
        from (select * from ({found}) one order by modified_at desc, id desc limit $3) page
        join documents d using (id) join users u on u.id = d.owner_id
        order by d.modified_at desc, d.id desc""",
        arguments,
    )


def _dialect(query: DocumentQuery) -> str | None:
    return None if query.type in {None, "notebook"} else (query.type or "").removeprefix("query-")


def _parts(query: DocumentQuery, chosen: str, after: str) -> Sequence[str]:
    """Return the queries whose rows make up the page, each of which reads up to a page in the order of an index."""
    own = "d.modified_at, d.id"
    documents = f"select d.id, d.modified_at from documents d where {chosen}{after.format(own)}"
    newest = "order by d.modified_at desc, d.id desc limit $3"
    if query.of_all:
        return [f"{documents} {newest}"]
    parts = [f"{documents} and d.owner_id = $1 {newest}"]
    if not query.is_trashed:
        granted = f"""
            select d.id, g.modified_at from document_grants g join documents d on d.id = g.document_id
            where {{grantee}} and d.owner_id <> $1 and {chosen}{after.format("g.modified_at, g.document_id")}
            order by g.modified_at desc, g.document_id desc limit $3
        """
        by_group = granted.format(grantee="g.group_id = m.group_id")
        parts += [
            granted.format(grantee="g.user_id = $1"),
            f"select one.* from group_members m cross join lateral ({by_group}) one where m.user_id = $1",
        ]
    return parts
