"""Request fields of the calls that grant results to users and groups (Contract sharing)."""

from datetime import datetime
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from queryserver.api.schemas.fields import EntriesPerPage, Fields, PageNumber, ShortArray, Text, listed, moment, must
from queryserver.api.schemas.requests.editor import OperationRequest

MAX_TITLE_LENGTH = 200


def _title(value: str) -> str:
    if len(value) > MAX_TITLE_LENGTH or not value.isprintable():
        raise must(f"have at most {MAX_TITLE_LENGTH} printable characters.")
    return value


Names: TypeAlias = Annotated[ShortArray[tuple[Text, ...]], BeforeValidator(listed)]


class RevokeShareRequest(OperationRequest):
    """Fields of revoke_share. Without users and groups, all grants of the result are revoked."""

    users: Annotated[Names, Field(description="User names as a JSON array; in a form also comma-separated.")] = ()
    groups: Annotated[Names, Field(description="Group names as a JSON array; in a form also comma-separated.")] = ()


class ShareRequest(RevokeShareRequest):
    """Fields of share_result. At least one user or group is required."""

    until: Annotated[datetime | None, BeforeValidator(moment)] = Field(
        default=None,
        description="Time when the grant ends. The settings `editor.share_default_days` and `editor.share_max_days`"
        " define the default and the maximum. A grant does not prolong how long the result is kept.",
    )
    title: Annotated[
        Text,
        AfterValidator(_title),
        Field(
            description="What the users see as the name of the result, because they do not see the statement.",
            json_schema_extra={"maxLength": MAX_TITLE_LENGTH},
        ),
    ] = ""


class SharedParameters(Fields):
    """Query parameters of shared_with_me."""

    page: PageNumber = 1
    limit: EntriesPerPage = 50
