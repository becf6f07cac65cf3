"""Users, for administrators, and the preferences and the budget of the current user (Contract platform 6)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from queryserver_client.generated import Budget, BudgetResponse, Preferences, PreferencesResponse, UserListResponse

_PAGE_USERS = 500


@dataclass(frozen=True)
class User:
    id: int
    name: str
    groups: tuple[str, ...]
    is_active: bool
    is_administrator: bool
    is_service_account: bool = False
    """Whether the user has API tokens but no login. Always False if the server does not report it."""


class Users:
    """Implements `Connection.users`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        name: str | None = None,
        groups: Sequence[str] = (),
        is_active: bool | None = None,
        is_service_account: bool | None = None,
    ) -> AsyncIterator[User]:
        """Yield users sorted by name (administrators). All given filters must match.

        `name` is the name of one user. `groups` matches the members of any of these groups. `is_active` and
        `is_service_account` match users with this value.
        """
        query: dict[str, Any] = {"limit": _PAGE_USERS}
        query |= {"username": name} if name is not None else {}
        query |= {"groups": list(groups)} if groups else {}
        query |= {"is_active": "true" if is_active else "false"} if is_active is not None else {}
        if is_service_account is not None:
            query["is_service_account"] = "true" if is_service_account else "false"
        page, seen = 1, 0
        while True:
            params = {**query, "page": page}
            body: UserListResponse = await self._transport.call("GET", "iam/get_users", params=params)
            for item in body["users"]:
                seen += 1
                yield User(
                    item["id"],
                    item["username"],
                    tuple(item["groups"]),
                    item["is_active"],
                    item["superuser"],
                    item.get("is_service_account", False),
                )
            if seen >= body["count"] or not body["users"]:
                return
            page += 1

    async def preferences(self) -> "Preferences":
        """Return the user's preferences, which are the defaults of calls.

        They do not affect this client, which sends explicit values in each call.
        """
        body: PreferencesResponse = await self._transport.call("GET", "iam/preferences")
        return body["preferences"]

    async def budget(self, name: str | None = None) -> "Budget":
        """Return what the user's statements may use today, have used, and what is left.

        `name` is the name of another user (administrators).
        """
        params = None if name is None else {"username": name}
        body: BudgetResponse = await self._transport.call("GET", "iam/budget", params=params)
        return body["budget"]

    async def prefer(self, **preferences: str) -> "Preferences":
        """Change preferences, such as `big_numbers="text"`, and return all preferences."""
        body: PreferencesResponse = await self._transport.call(
            "POST", "iam/preferences", preferences, is_repeatable=True
        )
        return body["preferences"]
