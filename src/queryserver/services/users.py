"""Looking users up (Contract platform 6)."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from queryserver.db.user_lists import UserListRepository
from queryserver.domain.user import User
from queryserver.interfaces.user_lists import GroupName, Suggestion, UserDetails, UserFilter, UserSummary

MAX_PAGE = 1000
_MOST_SKIPPED = 2**62  # what the database counts in


@dataclass(frozen=True, slots=True)
class Completion:
    """What an administrator has typed so far, and what to complete it with."""

    text: str
    count: int
    with_groups: bool
    with_caller: bool
    only_groups_of_caller: bool


class Users:
    """Users and groups by what they are called. The callers are administrators."""

    def __init__(self, lists: UserListRepository) -> None:
        self._lists = lists

    async def matching(
        self, wanted: UserFilter, *, page: int | None = None, limit: int | None = None
    ) -> tuple[int, Sequence[UserSummary]]:
        """How many match, and one page of them; without page and limit all."""
        if page is None and limit is None:
            return await self._lists.matching(_composed(wanted), offset=0, limit=None)
        size = limit or MAX_PAGE
        offset = min(((page or 1) - 1) * size, _MOST_SKIPPED)
        return await self._lists.matching(_composed(wanted), offset=offset, limit=size)

    async def with_ids(self, ids: Sequence[int]) -> Sequence[UserDetails]:
        """The users of these ids, each once; unknown ids are left out."""
        return await self._lists.with_ids(ids)

    async def completions(self, caller: User, typed: Completion) -> tuple[Sequence[UserDetails], Sequence[GroupName]]:
        """Active users and groups whose names hold the text."""
        suggestion = Suggestion(
            text=unicodedata.normalize("NFKC", typed.text),
            count=typed.count,
            with_groups=typed.with_groups,
            without_user=None if typed.with_caller else caller.id,
            groups_of=caller.id if typed.only_groups_of_caller else None,
        )
        return await self._lists.suggested_users(suggestion), await self._lists.suggested_groups(suggestion)


def _composed(wanted: UserFilter) -> UserFilter:
    """Names are stored composed."""
    if wanted.username is None:
        return wanted
    return replace(wanted, username=unicodedata.normalize("NFKC", wanted.username))
