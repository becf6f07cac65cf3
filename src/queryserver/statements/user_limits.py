"""Limits that the settings give to users, by their groups (Contract editor 4.10, platform 6.5)."""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from queryserver.platform.settings.editor import EditorSettings

LimitName: TypeAlias = Literal["max_estimated_bytes", "budget_engine_s_per_day", "budget_bytes_per_day"]


@dataclass(frozen=True, slots=True)
class UserLimit:
    """A limit of a user, and the setting that defines it."""

    most: int | None
    """None for no limit."""
    setting: str
    group: str | None = None
    """The group whose members have this limit, or None if the limit is that of all other users."""

    @property
    def origin(self) -> str:
        """Whose limit it is, for messages."""
        return f"`{self.setting}`" if self.group is None else f"the group {self.group}, `{self.setting}`"


def user_limit(groups: Collection[str], editor: EditorSettings, name: LimitName) -> UserLimit:
    """Return the limit of a user in these groups.

    This is the highest limit of the user's groups, because groups add to what a user may do; or the limit of `editor`
    if none of the groups has one.
    """
    limits = list[tuple[int, str]]()
    for group in sorted(editor.group_limits.keys() & set(groups)):
        own = getattr(editor.group_limits[group], name)
        if own is not None:
            limits.append((own, group))
    if not limits:
        return UserLimit(getattr(editor, name) or None, f"editor.{name}")
    most, group = max(limits, key=lambda one: one[0] or inf)
    return UserLimit(most or None, f"editor.group_limits.{group}.{name}", group)
