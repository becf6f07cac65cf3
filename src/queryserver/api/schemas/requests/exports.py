"""Request body of export_result (Contract exports 2)."""

from typing import Annotated

from pydantic import AfterValidator, Field

from queryserver.api.schemas.fields import Flag, Json, Text
from queryserver.api.schemas.requests.destinations import DestinationFields
from queryserver.api.schemas.requests.editor import KEY_SCHEMA, ExecuteNotify, ResultRequest, idempotency_key, valid_key


class ExportRequest(ResultRequest, DestinationFields):
    """Fields of export_result."""

    allow_truncated: Flag = Field(
        default=False,
        description="Export the stored rows even if the server truncated the result. By default, that is an error.",
    )
    client_request_id: Annotated[Text, AfterValidator(valid_key), KEY_SCHEMA] | None = None
    notify: Json[ExecuteNotify] | None = Field(
        default=None,
        description='`{"url": …}`: the URL receives a signed request when the export has ended. Requires the setting'
        " `desktop.task_server.webhook_secret`.",
    )

    def idempotency_key(self, header: str | None) -> str | None:
        """Return the key as `ExecuteRequest.idempotency_key` does."""
        return idempotency_key(header, self.client_request_id)
