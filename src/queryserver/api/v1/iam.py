"""Users and groups, for administrators, and the preferences of each user (Contract platform 6)."""

from collections.abc import Sequence
from urllib.parse import quote

from fastapi import Response

from queryserver.api.answers import answer, like, moment_without_zone
from queryserver.api.bodies import Body, Call, form_fields
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.errors.base import UserNotFound
from queryserver.identity.model import Preferences
from queryserver.identity.users import GroupName, UserDetails, UserSummary

router = PathGroup()

# Above this the answer is written in a thread: 50,000 users take a third of a second.
_FEW = 2000


@router.operation("find_users")
async def get_users(call: Call) -> Response:
    """Users by name, groups and state, all or by pages. Contract platform 6.1."""
    # Of a repeated `groups` every value counts.
    groups = [value for name, value in form_fields(call.request.scope["query_string"]) if name == "groups"]
    fields = {**call.body.fields, "groups": groups or None}
    asked = await Call(call.request, call.services, call.user, Body(fields)).read(requests.UserListParameters)
    count, users = await call.services.users.matching(
        username=asked.username or None,
        groups=asked.groups,
        is_active=asked.is_active,
        is_service_account=asked.is_service_account,
        page=asked.page,
        limit=asked.limit,
    )
    if len(users) <= _FEW:
        return _listed(count, users)
    return await call.services.threads.answers.run(call.user.id, lambda _: _listed(count, users))


@router.operation("get_users_by_id")
async def users(call: Call) -> Response:
    """At most 1000 users; unknown ids are left out. Contract platform 6.2."""
    asked = await call.read(requests.UsersParameters)
    found = await call.services.users.with_ids(asked.userids)
    return answer(wire.UsersResponse(users=[_user(user) for user in found], status=0))


@router.operation("autocomplete_users")
async def autocomplete(call: Call) -> Response:
    """Active users and groups whose names hold a text. Contract platform 6.3."""
    asked = await call.read(requests.UserAutocompleteParameters)
    found, groups = await call.services.users.completions(
        call.user,
        asked.filter,
        count=asked.count,
        with_groups=asked.extend_user,
        with_caller=asked.include_myself,
        only_groups_of_caller=asked.only_mygroups,
    )
    shown = [_user(user, with_groups=asked.extend_user) for user in found]
    return answer(wire.UserAutocompleteResponse(users=shown, groups=_groups(groups), status=0))


@router.operation("get_preferences")
async def preferences(call: Call) -> Response:
    """What the caller wants where a call does not say it. Contract platform 6.4."""
    return _preferences(call.user.preferences)


@router.operation("change_preferences")
async def change_preferences(call: Call) -> Response:
    """Preferences that are not sent stay as they are. Contract platform 6.4."""
    changes = (await call.read(requests.PreferencesRequest)).changes
    if not changes:
        return _preferences(call.user.preferences)
    changed = await call.services.users.change_preferences(call.user.id, changes)
    if changed is None:
        raise UserNotFound
    return _preferences(changed)


def _preferences(preferences: Preferences) -> Response:
    shown = wire.Preferences(big_numbers=preferences.big_numbers)
    return answer(wire.PreferencesResponse(status=0, preferences=shown))


def _listed(count: int, users: Sequence[UserSummary]) -> Response:
    shown = [
        wire.UserSummary(
            id=user.id,
            username=user.username,
            groups=list(user.groups),
            is_active=user.is_active,
            superuser=user.is_admin,
            is_service_account=user.is_service_account,
        )
        for user in users
    ]
    return answer(wire.UserListResponse(users=shown, count=count, status=0))


def _user(user: UserDetails, *, with_groups: bool = False) -> wire.User:
    return like(
        wire.User,
        user,
        last_login=moment_without_zone(user.last_login),
        editURL=f"/useradmin/users/edit/{quote(user.username, safe='')}",
        groups=_groups(user.groups) if with_groups else None,
    )


def _groups(groups: Sequence[GroupName]) -> list[wire.Group]:
    return [wire.Group(id=group.id, name=group.name) for group in groups]
