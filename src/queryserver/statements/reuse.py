"""Finds stored results that may answer a new statement in place of the engine (Contract editor 4.8)."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import orjson

from queryserver.connectors.model import Connector
from queryserver.engines.protocol import Credentials
from queryserver.identity.keys import Sealer
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.sql.classification import MAX_TOKENIZED_CHARACTERS, changes_data, is_quick, only_reads
from queryserver.sql.markers import StatementParameters
from queryserver.sql.scanner import first_keyword
from queryserver.sql.statements import Choice
from queryserver.statements.model import NewStatement, ReusedResult
from queryserver.statements.session_options import StatementSession

# A source must stay available for long enough that its rows can be copied.
_MIN_REMAINING = timedelta(minutes=1)

# A statement ends after it was sent. So the range of the index contains every result that is new enough, and the exact
# condition follows. A result that the caller's own limit truncated is what the same call would store again.
_FIND = """
select id, coalesce(reused_from, id) as reused_from, coalesce(reused_sent_at, sent_at) as sent_at,
    now() - coalesce(reused_sent_at, sent_at) as age
from statements
where reuse_key = $1 and user_id = $2 and state = 'available' and ended_at >= now() - $3::interval
    and coalesce(reused_sent_at, sent_at) >= now() - $3::interval and expires_at > now() + $4::interval
    and (truncated_reason is null or (truncated_reason = 'row_limit' and limit_source = 'caller'))
order by ended_at desc limit 1
"""


@dataclass(frozen=True, slots=True)
class ResultReuse:
    """Finds the stored result of a statement with the same text, values, connector and options, of the same user.

    Statements are compared by a digest, because values and settings may be secrets. Computing it, which would allow a
    guess to be tested, requires the secret key of this service, which is not in the database.
    """

    database: Database
    sealer: Sealer

    def key(
        self,
        user: User,
        connector: Connector,
        choice: Choice,
        session: StatementSession,
        new: NewStatement,
        *,
        credentials: Credentials | None,
    ) -> bytes | None:
        """Return the digest of what determines the rows of the statement, or None if its rows cannot be reused.

        That is the case for statements that may change data or whose rows may depend on earlier statements of their
        session or script. This check is quick, because every statement makes it; `answered` makes the thorough one.
        """
        text = new.handle.statement
        has_state = session.is_named or session.is_shared or session.owner is not None
        if has_state or choice.count > 1 or not choice.has_result_set or new.destination is not None:
            return None
        if new.token is not None:  # the rows depend on the rights in the token
            return None
        if len(text) > MAX_TOKENIZED_CHARACTERS or changes_data(text, connector.dialect):
            return None
        return self.sealer.digest(
            orjson.dumps(
                [
                    [user.id, user.username, credentials.username if credentials else None],
                    [connector.key, connector.version, connector.dialect, connector.interface],
                    sorted(connector.options.items()),
                    text,
                    _stored_values(new.parameters),
                    new.database or None,
                    sorted(new.settings.items()),
                    new.row_limit,
                ],
                option=orjson.OPT_SORT_KEYS,
            )
        )

    async def answered(self, new: NewStatement, max_age: timedelta) -> NewStatement:
        """Return the statement with the stored result that answers it as its source, or unchanged if there is none.

        The rows of the source were requested from the engine at most `max_age` ago.
        """
        if new.reuse_key is None or not max_age or not await _surely_only_reads(new):
            return new
        found = await self.database.row(_FIND, new.reuse_key, new.user_id, max_age, _MIN_REMAINING)
        if found is None:
            return new
        line = (
            f"Answered with the stored result of operation {found['reused_from']}, which was sent to the data source"
            f" {round(found['age'].total_seconds())} s ago. The data source is not asked."
        )
        return replace(
            new,
            source_operation=found["id"],
            reused=ReusedResult(found["reused_from"], found["sent_at"]),
            log_lines=(*new.log_lines, line),
        )


def _stored_values(parameters: StatementParameters | None) -> Mapping[str, object] | None:
    return None if parameters is None else parameters.stored()


async def _surely_only_reads(new: NewStatement) -> bool:
    """Return whether the statement is a query without known effects. The plan of a query is never reused."""
    text, dialect = new.handle.statement, new.dialect
    if first_keyword(text, dialect) == "EXPLAIN":
        return False
    return only_reads(text, dialect) if is_quick(text) else await asyncio.to_thread(only_reads, text, dialect)
