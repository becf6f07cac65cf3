"""Users as statements need them."""

from typing import Protocol

from queryserver.domain.user import User


class UserDirectory(Protocol):
    """Looks users up by id."""

    async def user(self, user_id: int) -> User | None:
        """An active user with rights and groups; None when disabled or deleted. Raises DatabaseUnavailable."""
        ...
