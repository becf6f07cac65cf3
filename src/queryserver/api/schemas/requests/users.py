"""Request fields of the calls with which administrators change users and groups.

Contract platform 6.6, 6.7.
"""

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from queryserver.api.schemas.fields import Fields, Flag, RequiredText, ShortArray, Text, listed
from queryserver.identity.administration import NewUser, UserChange
from queryserver.identity.model import AuthenticatedUser

_Names: TypeAlias = Annotated[ShortArray[tuple[Text, ...]], BeforeValidator(listed)]
_FORMS = "as a JSON array; in a form also as a comma-separated list."
_PASSWORD: dict[str, Any] = {"format": "password"}

Username: TypeAlias = Annotated[RequiredText, Field(description="Name of the user.")]
GroupName: TypeAlias = Annotated[RequiredText, Field(description="Name of the group.")]


class UserParameters(Fields):
    username: Username


class UserRequest(Fields):
    """Fields of iam/users/revoke_tokens."""

    username: Username


class NewUserRequest(Fields):
    """Fields of iam/users/new."""

    username: Annotated[RequiredText, Field(description="Name, 1 to 150 letters, digits and the characters `@.+-_`.")]
    password: Annotated[
        Text | None,
        Field(
            repr=False,
            json_schema_extra=_PASSWORD,
            description="Password, which must meet the rules of the settings. Required except for service accounts.",
        ),
    ] = None
    first_name: Annotated[Text, Field(description="First name, at most 150 characters.")] = ""
    last_name: Annotated[Text, Field(description="Last name, at most 150 characters.")] = ""
    email: Annotated[Text, Field(description="E-mail address, at most 254 characters.")] = ""
    groups: Annotated[_Names, Field(description=f"Groups besides the default group, {_FORMS}")] = ()
    is_admin: Annotated[Flag, Field(description="Create an administrator.")] = False
    is_service_account: Annotated[
        Flag, Field(description="Create a service account, which has API tokens but no password and no login.")
    ] = False

    @property
    def user(self) -> NewUser:
        person = AuthenticatedUser(self.username, self.first_name, self.last_name, self.email, self.groups)
        return NewUser(person, self.password, is_admin=self.is_admin, is_service_account=self.is_service_account)


class UserChangeRequest(Fields):
    """Fields of iam/users/update. Omitted fields stay unchanged."""

    username: Username
    first_name: Annotated[Text | None, Field(description="First name, at most 150 characters.")] = None
    last_name: Annotated[Text | None, Field(description="Last name, at most 150 characters.")] = None
    email: Annotated[Text | None, Field(description="E-mail address, at most 254 characters.")] = None
    is_active: Annotated[
        Flag | None, Field(description="By false, all tokens of the user become invalid and logins are refused.")
    ] = None
    is_admin: Annotated[Flag | None, Field(description="The user's own flag. Groups can grant the right too.")] = None
    groups: Annotated[_Names | None, Field(description=f"Groups that replace all groups of the user, {_FORMS}")] = None
    password: Annotated[
        Text | None,
        Field(
            repr=False, json_schema_extra=_PASSWORD, description="New password. All tokens of the user become invalid."
        ),
    ] = None

    @property
    def change(self) -> UserChange:
        return UserChange(**self.model_dump(exclude={"username"}))


class NewGroupRequest(Fields):
    """Fields of iam/groups/new."""

    name: Annotated[RequiredText, Field(description="Name, 1 to 150 printable characters without commas.")]
    rights: Annotated[_Names, Field(description=f"Rights, such as `download` or `connector:7`, {_FORMS}")] = ()


class GroupRightsRequest(Fields):
    """Fields of iam/groups/update."""

    name: GroupName
    grant: Annotated[_Names, Field(description=f"Rights to grant, {_FORMS}")] = ()
    revoke: Annotated[_Names, Field(description=f"Rights to revoke, {_FORMS}")] = ()


class GroupRequest(Fields):
    """Fields of iam/groups/delete."""

    name: GroupName
