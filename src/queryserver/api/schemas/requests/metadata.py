"""Request bodies of the editor's metadata calls (Contract editor 10)."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from queryserver.api.schemas.fields import (
    ConnectorReference,
    Fields,
    Flag,
    Integer,
    Json,
    PageSize,
    Text,
    decode_json_string,
)
from queryserver.api.schemas.requests.editor import BigNumbersField, Snippet, SnippetConnector


class MetadataRequest(Fields):
    """Fields of all metadata calls: the connector, and whether to bypass the cache."""

    snippet: Json[Snippet] = Snippet()
    refresh: Flag = Field(default=False, description="Query the data source instead of the cache.")


class AutocompleteRequest(MetadataRequest):
    """Fields of autocomplete (Contract editor 10.1, 10.2). `prefix`, `page` and `limit` apply only to lists."""

    operation: Literal["schema", "functions", "function"] = "schema"
    prefix: Text = Field(default="", description="Only names with this prefix, compared case-insensitively.")
    page: Annotated[int, PageSize(10**6)] = 1
    limit: Annotated[int, PageSize()] | None = Field(default=None, description="Names per page.")


class SampleRequest(MetadataRequest):
    """Fields of sample (Contract editor 10.3). The default of `escape` is a setting. `timeout` applies to `async`."""

    operation: Annotated[Literal["default", "distinct", "max", "min", "hello"], BeforeValidator(decode_json_string)] = (
        "default"
    )
    is_async: Flag = Field(default=False, alias="async")
    escape: Flag | None = None
    big_numbers: BigNumbersField = None
    timeout: Annotated[int, Integer(1, 86400)] | None = None


class DescribeRequest(Fields):
    """Fields of describe (Contract editor 10.4)."""

    source_type: ConnectorReference | None = None
    connector: Json[SnippetConnector] | None = None
    refresh: Flag = Field(default=False, description="Query the data source instead of the cache.")

    @property
    def connector_reference(self) -> str | None:
        """The connector reference: `connector` takes precedence over `source_type`."""
        return (self.connector and (self.connector.type or self.connector.id)) or self.source_type
