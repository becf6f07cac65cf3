"""Budgets of users for one UTC day: seconds of engine time, and bytes read from data sources (Contract platform 6.5).

What is used is computed from the records of the statements, so that a statement costs no further write.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import floor

from queryserver import errors
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import User, UsernameRule
from queryserver.platform.database import Database, Row
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements.model import NewStatement
from queryserver.statements.user_limits import UserLimit, user_limit

_MAX_TIMEOUT = timedelta(days=1)
"""The longest `timeout` of a call."""

# Statements that only read a stored result use no engine. A script is counted by its statements. The lower bound of
# `recorded_at` limits the range of the index; no statement of today is older, because it would have reached its
# deadline. Bytes cannot be split, so they count on the day on which the statement ends.
_USE = """
    coalesce(sum(extract(epoch from
        coalesce(ended_at, now()) - greatest(sent_at, day.start))) filter (where sent_at is not null), 0
    )::float8 as engine_s,
    coalesce(sum(coalesce(scanned_bytes, estimated_bytes, size_bytes)), 0)::float8 as read_bytes
"""
_DAY = "(select date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' as start) as day"
_COUNTED = """
    recorded_at >= day.start - make_interval(secs => {longest}) and sent_at is not null
    and (ended_at is null or ended_at >= day.start) and source_operation is null and not is_script
"""
_GROUPS = "array(select g.name from group_members m join groups g on g.id = m.group_id where m.user_id = u.id)"

_OF_USER = f"""
select day.start, now() as read_at, used.*
from {_DAY}, lateral (
    select {_USE} from statements where user_id = $1 and {_COUNTED.format(longest="$2")}
) as used
"""

_NAMED = f"select u.id, u.username, {_GROUPS} as groups from users u where u.username_key = $1"

_TOP = f"""
select day.start, now() as read_at, u.username, {_GROUPS} as groups, used.engine_s, used.read_bytes
from {_DAY}, lateral (
    select user_id, {_USE} from statements where {_COUNTED.format(longest="$1")} group by user_id
) as used join users u on u.id = used.user_id
order by used.engine_s desc, u.username_key limit $2
"""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A limit per day, and how much of it is used."""

    limit: UserLimit
    used: float

    @property
    def left(self) -> float | None:
        """What is left, or None if there is no limit."""
        return None if self.limit.most is None else max(self.limit.most - self.used, 0)

    @property
    def is_exhausted(self) -> bool:
        return self.left is not None and self.left < 1


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a user for the current UTC day."""

    username: str
    engine_s: Allowance
    read_bytes: Allowance
    resets_at: datetime
    resets_in: timedelta

    @property
    def max_timeout(self) -> timedelta | None:
        """The longest time that a statement may run from now on, or None for no limit.

        A statement that is still running at midnight also uses the budget of the next day.
        """
        left, most = self.engine_s.left, self.engine_s.limit.most
        if left is None or most is None:
            return None
        until_reset_s = self.resets_in.total_seconds()
        return timedelta(seconds=floor(left if left < until_reset_s else until_reset_s + most))


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The longest time that a new statement may run, and the setting from which it follows."""

    longest: timedelta
    origin: str

    def applied_to(self, new: NewStatement) -> NewStatement:
        """Return the statement with a time limit that is at most this one, and says so in its log."""
        if new.timeout <= self.longest:
            return new
        seconds = self.longest.total_seconds()
        line = f"The time limit is {seconds:.0f} s, which is what is left of your budget ({self.origin})."
        return replace(new, timeout=self.longest, log_lines=(*new.log_lines, line))


@dataclass(frozen=True, slots=True)
class Budgets:
    """Reads what users have used of their budgets, and refuses new statements of users who have used them up."""

    database: Database
    editor: EditorSettings
    usernames: UsernameRule
    connectors: Connectors

    async def admit(self, user: User) -> "TimeLimit | None":
        """Return the limit that a budget sets to the time of a new statement, or None if there is none.

        Without a budget, this makes no query. Raises budget_exhausted, DatabaseUnavailable.
        """
        if not self._has_budget(user.groups):
            return None
        budget = await self.of(user)
        for allowance, unit in ((budget.engine_s, "s of engine time"), (budget.read_bytes, "bytes")):
            if allowance.is_exhausted:
                raise errors.budget_exhausted(
                    f"Your statements have used {allowance.used:.0f} {unit} today; the budget is"
                    f" {allowance.limit.most} per UTC day ({allowance.limit.origin}). A new day begins at"
                    f" {budget.resets_at:%Y-%m-%dT%H:%M:%SZ}. See GET iam/budget.",
                    retry_after=budget.resets_in,
                )
        longest = budget.max_timeout
        return None if longest is None else TimeLimit(longest, budget.engine_s.limit.origin)

    async def of(self, user: User) -> Budget:
        """Return the budget of a user, with what is used at present. Raises DatabaseUnavailable."""
        return await self._budget(user.id, user.username, user.groups)

    async def of_name(self, username: str) -> Budget:
        """Return the budget of the user with this name. Raises InvalidUsername, unknown_user, DatabaseUnavailable."""
        row = await self.database.row(_NAMED, self.usernames.read(username).key)
        if row is None:
            raise errors.unknown_user(username)
        return await self._budget(row["id"], row["username"], row["groups"])

    async def top(self, limit: int) -> Sequence[Budget]:
        """Return the budgets of the users whose statements have used the most engine time today."""
        rows = await self.database.fetch(_TOP, self._longest_s, limit)
        return [self._read(row, row["username"], row["groups"]) for row in rows]

    async def _budget(self, user_id: int, username: str, groups: Collection[str]) -> Budget:
        row = await self.database.row(_OF_USER, user_id, self._longest_s)
        assert row is not None  # noqa: S101 an aggregate without groups always has a row
        return self._read(row, username, groups)

    def _read(self, row: Row, username: str, groups: Collection[str]) -> Budget:
        resets_at = row["start"] + timedelta(days=1)
        return Budget(
            username,
            Allowance(user_limit(groups, self.editor, "budget_engine_s_per_day"), row["engine_s"]),
            Allowance(user_limit(groups, self.editor, "budget_bytes_per_day"), row["read_bytes"]),
            resets_at,
            resets_at - row["read_at"],
        )

    def _has_budget(self, groups: Collection[str]) -> bool:
        names = ("budget_engine_s_per_day", "budget_bytes_per_day")
        return any(user_limit(groups, self.editor, name).most is not None for name in names)

    @property
    def _longest_s(self) -> int:
        return int(max(_MAX_TIMEOUT, self.connectors.max_timeout).total_seconds())
