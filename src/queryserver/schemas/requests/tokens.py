"""Bodies of the token calls, for the API description (Contract platform 3).

The calls read them with TokenFields, whose failures name each wrong field as Hue does.
"""

from pydantic import Field

from queryserver.schemas.fields import Flag, Text
from queryserver.schemas.snippets import Fields


class LogInRequest(Fields):
    """Fields of token/auth."""

    username: Text = Field(description="Name of the user, 1 to 150 characters; surrounding blanks do not count.")
    password: Text = Field(description="The password, 1 to 1024 bytes.")


class VerifyTokenRequest(Fields):
    """Fields of token/verify."""

    token: Text = Field(description="An access token.")


class RefreshTokenRequest(Fields):
    """Fields of token/refresh."""

    refresh: Text = Field(description="A refresh token.")


class RevokeTokenRequest(Fields):
    """Fields of token/revoke. Without a token the bearer token of the call is meant."""

    token: Text | None = Field(default=None, description="An access token or a refresh token.")
    refresh: Text | None = Field(default=None, description="A refresh token.")
    all: Flag = Field(default=False, description="End every login of that user.")
