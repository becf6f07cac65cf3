"""Calls for users and groups, which are for administrators, and for the caller's preferences and budget.

Contract platform 6.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated
from urllib.parse import quote

from fastapi import Response

from queryserver.api.dependencies import (
    Admin,
    AnyUser,
    BudgetsDep,
    NoFields,
    ThreadsDep,
    UserAdministrationDep,
    UsersDep,
    fields,
)
from queryserver.api.responses import json_response, model_from, utc_text, utc_text_without_zone
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.fields import INT64_MAX
from queryserver.api.schemas.requests import platform as requests
from queryserver.api.schemas.requests import users as changes
from queryserver.errors.base import UserNotFound, admin_required
from queryserver.identity.model import NAMED_RIGHTS, Preferences
from queryserver.identity.repository import AccountDetails
from queryserver.identity.users import GroupGrants, GroupName, UserDetails, UserSummary
from queryserver.statements.budgets import Allowance, Budget

router = PathGroup("iam", prefix="/api/v1/iam")

# Larger responses are encoded in a thread: 50,000 users take 0.3 s.
_MAX_LOOP_USERS = 2000


@router.get("/get_users", response_model=wire.UserListResponse)
async def find_users(
    user: Admin,
    request: Annotated[requests.UserListParameters, fields(requests.UserListParameters, repeated={"groups"})],
    users: UsersDep,
    threads: ThreadsDep,
) -> Response:
    """List all users or one page of them, optionally filtered by name, groups and state. Contract platform 6.1."""
    count, page = await users.matching(
        username=request.username or None,
        typed=request.filter,
        groups=request.groups,
        is_active=request.is_active,
        is_service_account=request.is_service_account,
        page=request.page,
        limit=request.limit,
    )
    if len(page) <= _MAX_LOOP_USERS:
        return _user_list(count, page)
    return await threads.answers.run(user.id, lambda _: _user_list(count, page))


@router.get("/users", response_model=wire.UsersResponse)
async def get_users_by_id(
    _user: Admin, request: Annotated[requests.UsersParameters, fields(requests.UsersParameters)], users: UsersDep
) -> Response:
    """Return at most 1000 users by id. Unknown ids are omitted. Contract platform 6.2."""
    found = await users.with_ids(request.userids)
    return json_response(wire.UsersResponse(users=[user_body(user) for user in found], status=0))


@router.get("/users/autocomplete", response_model=wire.UserAutocompleteResponse)
async def autocomplete_users(
    user: Admin,
    request: Annotated[requests.UserAutocompleteParameters, fields(requests.UserAutocompleteParameters)],
    users: UsersDep,
) -> Response:
    """List the active users and the groups whose names contain `filter`. Contract platform 6.3."""
    found, groups = await users.completions(
        user,
        request.filter,
        count=request.count,
        with_groups=request.extend_user,
        with_caller=request.include_myself,
        only_groups_of_caller=request.only_mygroups,
    )
    shown = [user_body(one, with_groups=request.extend_user) for one in found]
    return json_response(wire.UserAutocompleteResponse(users=shown, groups=_groups(groups), status=0))


@router.get("/users/get", response_model=wire.AccountResponse, responses=failures(404))
async def get_user(
    _user: Admin,
    request: Annotated[changes.UserParameters, fields(changes.UserParameters)],
    administration: UserAdministrationDep,
) -> Response:
    """Return a user with groups, administrator flag and external identities. Contract platform 6.6."""
    return _account(await administration.user(request.username))


@router.post("/users/new", response_model=wire.AccountResponse, responses=failures(404, 409))
async def new_user(
    user: Admin,
    request: Annotated[changes.NewUserRequest, fields(changes.NewUserRequest)],
    administration: UserAdministrationDep,
) -> Response:
    """Create a user with a password, or a service account. Contract platform 6.6.

    An API token needs every scope for this call.
    """
    return _account(await administration.create(user, request.user))


@router.post("/users/update", response_model=wire.AccountResponse, responses=failures(404, 409))
async def update_user(
    user: Admin,
    request: Annotated[changes.UserChangeRequest, fields(changes.UserChangeRequest)],
    administration: UserAdministrationDep,
) -> Response:
    """Change a user: names, e-mail address, state, administrator flag, groups, password. Contract platform 6.6.

    All fields are changed, or none if one is refused. An API token needs every scope for this call.
    """
    return _account(await administration.update(user, request.username, request.change))


@router.post("/users/revoke_tokens", response_model=wire.AccountResponse, responses=failures(404))
async def revoke_user_tokens(
    user: Admin,
    request: Annotated[changes.UserRequest, fields(changes.UserRequest)],
    administration: UserAdministrationDep,
) -> Response:
    """End all logins of a user and all of the user's API tokens. Contract platform 6.6."""
    return _account(await administration.revoke_tokens(user, request.username))


@router.get("/groups", response_model=wire.GroupListResponse)
async def list_groups(_user: Admin, _: NoFields, administration: UserAdministrationDep) -> Response:
    """List all groups with their rights and numbers of members, and the rights that exist. Contract platform 6.7."""
    groups = [_group_body(one, administration.default_group) for one in await administration.groups()]
    return json_response(wire.GroupListResponse(status=0, groups=groups, rights=sorted(NAMED_RIGHTS)))


@router.post("/groups/new", response_model=wire.GroupResponse, responses=failures(409))
async def new_group(
    user: Admin,
    request: Annotated[changes.NewGroupRequest, fields(changes.NewGroupRequest)],
    administration: UserAdministrationDep,
) -> Response:
    """Create a group with rights. Contract platform 6.7.

    An API token needs every scope for this call.
    """
    made = await administration.create_group(user, request.name, request.rights)
    return json_response(wire.GroupResponse(status=0, group=_group_body(made, administration.default_group)))


@router.post("/groups/update", response_model=wire.GroupResponse, responses=failures(404, 409))
async def update_group(
    user: Admin,
    request: Annotated[changes.GroupRightsRequest, fields(changes.GroupRightsRequest)],
    administration: UserAdministrationDep,
) -> Response:
    """Grant and revoke rights of a group. They hold from the next call of each member. Contract platform 6.7.

    An API token needs every scope for this call.
    """
    group = await administration.change_rights(user, request.name, grant=request.grant, revoke=request.revoke)
    return json_response(wire.GroupResponse(status=0, group=_group_body(group, administration.default_group)))


@router.post("/groups/delete", response_model=wire.GroupDeleteResponse, responses=failures(404, 409))
async def delete_group(
    user: Admin,
    request: Annotated[changes.GroupRequest, fields(changes.GroupRequest)],
    administration: UserAdministrationDep,
) -> Response:
    """Delete a group. Its members lose the rights granted through it. Contract platform 6.7.

    An API token needs every scope for this call.
    """
    await administration.delete_group(user, request.name)
    return json_response(wire.GroupDeleteResponse(status=0, name=request.name))


@router.get("/preferences", response_model=wire.PreferencesResponse)
async def get_preferences(user: AnyUser, _: NoFields) -> Response:
    """Return the caller's preferences, which apply to calls that omit the corresponding fields.

    Contract platform 6.4.
    """
    return _preferences(user.preferences)


@router.post("/preferences", response_model=wire.PreferencesResponse)
async def change_preferences(
    user: AnyUser, request: Annotated[requests.PreferencesRequest, fields(requests.PreferencesRequest)], users: UsersDep
) -> Response:
    """Change the caller's preferences. Omitted preferences stay unchanged. Contract platform 6.4."""
    if not request.changes:
        return _preferences(user.preferences)
    changed = await users.change_preferences(user.id, request.changes)
    if changed is None:
        raise UserNotFound
    return _preferences(changed)


@router.get("/budget", response_model=wire.BudgetResponse, responses=failures(403, 404))
async def get_budget(
    user: AnyUser, request: Annotated[requests.BudgetParameters, fields(requests.BudgetParameters)], budgets: BudgetsDep
) -> Response:
    """Return what the caller's statements may use today, have used, and what is left.

    Administrators can name another user. Contract platform 6.5.
    """
    if request.username is None:
        return json_response(wire.BudgetResponse(status=0, budget=_budget_body(await budgets.of(user))))
    if not user.is_admin:
        raise admin_required("You must be an administrator.")
    return json_response(wire.BudgetResponse(status=0, budget=_budget_body(await budgets.of_name(request.username))))


@router.get("/budgets", response_model=wire.BudgetsResponse)
async def list_budgets(
    _user: Admin,
    request: Annotated[requests.BudgetsParameters, fields(requests.BudgetsParameters)],
    budgets: BudgetsDep,
) -> Response:
    """Return the budgets of the users whose statements have used the most engine time today. Contract platform 6.5."""
    found = await budgets.top(request.limit)
    return json_response(wire.BudgetsResponse(status=0, budgets=[_budget_body(one) for one in found]))


def _budget_body(budget: Budget) -> wire.Budget:
    return model_from(
        wire.Budget,
        budget,
        engine_s=_allowance(budget.engine_s),
        bytes=_allowance(budget.read_bytes),
        resets_at=utc_text(budget.resets_at),
    )


def _allowance(allowance: Allowance) -> wire.Allowance:
    """Return whole numbers: what is used rounded up, so that a budget with nothing left is shown as used up.

    The sum of several estimates may be larger than the numbers that JSON parsers read.
    """
    used, most = min(ceil(allowance.used), INT64_MAX), allowance.limit.most
    return wire.Allowance(limit=most, used=used, left=None if most is None else max(most - used, 0))


def _account(details: AccountDetails) -> Response:
    account = details.account
    shown = model_from(
        wire.Account,
        account,
        groups=list(account.groups),
        superuser=details.is_administrator,
        identities=[wire.LinkedIdentity(issuer=one.issuer, subject=one.subject) for one in details.identities],
        last_login=utc_text_without_zone(account.last_login),
        created_at=utc_text(account.created_at),
    )
    return json_response(wire.AccountResponse(status=0, user=shown))


def _group_body(group: GroupGrants, default_group: str) -> wire.GroupRights:
    return wire.GroupRights(
        name=group.name, rights=list(group.rights), members=group.members, is_default=group.name == default_group
    )


def _preferences(preferences: Preferences) -> Response:
    shown = wire.Preferences(big_numbers=preferences.big_numbers)
    return json_response(wire.PreferencesResponse(status=0, preferences=shown))


def _user_list(count: int, users: Sequence[UserSummary]) -> Response:
    shown = [
        wire.UserSummary(
            id=user.id,
            username=user.username,
            groups=list(user.groups),
            is_active=user.is_active,
            superuser=user.is_admin,
            is_service_account=user.is_service_account,
            first_name=user.first_name,
            last_name=user.last_name,
            email=user.email,
            last_login=utc_text_without_zone(user.last_login),
        )
        for user in users
    ]
    return json_response(wire.UserListResponse(users=shown, count=count, status=0))


def user_body(user: UserDetails, *, with_groups: bool = False) -> wire.User:
    return model_from(
        wire.User,
        user,
        last_login=utc_text_without_zone(user.last_login),
        editURL=f"/useradmin/users/edit/{quote(user.username, safe='')}",
        groups=_groups(user.groups) if with_groups else None,
    )


def _groups(groups: Sequence[GroupName]) -> list[wire.Group]:
    return [wire.Group(id=group.id, name=group.name) for group in groups]
